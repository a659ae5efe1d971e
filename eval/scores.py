"""Scores of an evaluation: means over episodes with 95 % intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from nsde_policy.eval.modes import ModeOutcomes, ModeScores
from nsde_policy.eval.paths import number_paths
from nsde_policy.eval.rollout import EpisodeResult
from nsde_policy.eval.statistics import Estimate, mean, proportion
from nsde_policy.tasks import Task


@dataclass(frozen=True)
class EvaluationScores:
    """Figures over all episodes of an evaluation."""

    score_name: str
    """What the task calls its score, such as "max_reward"."""
    mean_score: Estimate
    success_rate: Estimate | None
    """None if the environment does not say which episodes succeed."""
    length: Estimate
    """Mean number of steps of an episode."""
    metrics: Mapping[str, Estimate]
    """Means of the task's further figures."""
    mean_steps_to_success: float | None
    """Mean number of steps before the first success, over successful episodes; None if none succeeds."""
    ms_per_action: float
    """Planning time per planned action on this machine, milliseconds, median over episodes."""
    network_calls_per_chunk: float
    episodes: list[EpisodeResult]
    distinct_paths: int
    """Number of different paths, see `number_paths`; the samples that intervals count."""
    modes: ModeScores | None = None
    """None if the task has no modes."""

    def to_json(self, **context: object) -> str:
        """Return the scores and the context they were made in as one JSON object."""
        values = {
            f"mean_{self.score_name}": asdict(self.mean_score),
            **({} if self.success_rate is None else {"success_rate": asdict(self.success_rate)}),
            **{name: asdict(estimate) for name, estimate in self.metrics.items()},
            "length": asdict(self.length),
            "mean_steps_to_success": self.mean_steps_to_success,
            "ms_per_action": self.ms_per_action,
            "network_calls_per_chunk": self.network_calls_per_chunk,
            "distinct_paths": self.distinct_paths,
            **({} if self.modes is None else self.modes.to_dict()),
            "episodes": [episode.to_dict(self.score_name) for episode in self.episodes],
        }
        return json.dumps({**context, **values}, indent=2, allow_nan=False)

    def as_text(self) -> str:
        """Return a table for a terminal, one line per figure."""
        steps = f"{self.mean_steps_to_success:.0f}" if self.mean_steps_to_success is not None else "–"
        known = self.success_rate is not None
        rows = {
            "episodes": len(self.episodes),
            **self._describe_paths(),
            f"mean {self.score_name}": self.mean_score,
            **({"success rate": self.success_rate} if known else {}),
            **self._describe_modes(),
            **self.metrics,
            "length": self.length,
            **({"steps to success": steps} if known else {}),
            "network calls": f"{self.network_calls_per_chunk:g} per chunk",
            "planning": f"{self.ms_per_action:.2f} ms per action",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name.replace('_', ' '):<{width}} {value}" for name, value in rows.items())

    def _describe_paths(self) -> dict[str, str]:
        """Return a line about distinct paths, if episodes repeat some or the task has modes."""
        count = self.distinct_paths
        if count == len(self.episodes):
            return {} if self.modes is None else {"distinct paths": str(count)}
        samples = "1 distinct path" if count == 1 else f"{count} distinct paths"
        return {"distinct paths": f"{count}: episodes repeat paths, so intervals have n = {samples}"}

    def _describe_modes(self) -> dict[str, str]:
        """Return lines about modes, if the task has some."""
        if self.modes is None:
            return {}
        modes, n = self.modes, sum(self.modes.counts)
        distinct = sum(map(bool, modes.counts))
        unknown = f", {modes.unknown} unknown" if modes.unknown else ""
        found = {"distinct modes": f"{distinct} of {len(modes.counts)} in {n} successes{unknown}"}
        if not n:
            return {**found, "entropy": "– (no successes)"}
        return {
            **found,
            "entropy": f"{modes.diversity.entropy}, without correction {modes.plain_entropy:.3f}",
            "success × entropy": str(modes.diversity.product),
        }


def score_episodes(results: Sequence[EpisodeResult], task: Task) -> EvaluationScores:
    """Average the outcomes of episodes of a task.

    Success is known if any episode says something of it: some environments report it only when it happens.
    """
    won = [r for r in results if r.success]
    needed = [r.steps_to_success for r in won if r.steps_to_success is not None]
    known = any(r.success is not None for r in results)
    paths = number_results(results)
    distinct = len({*paths})
    return EvaluationScores(
        score_name=task.score_name,
        mean_score=mean([r.score for r in results], groups=paths),
        success_rate=proportion(len(won), len(results), independent=distinct) if known else None,
        length=mean([r.steps for r in results], groups=paths),
        metrics={name: mean([r.metrics[name] for r in results], groups=paths) for name in results[0].metrics},
        mean_steps_to_success=float(np.mean(needed)) if won else None,
        ms_per_action=float(np.median([1e3 * r.planning_s / r.planned for r in results])),
        network_calls_per_chunk=float(np.mean([r.network_calls / r.plans for r in results])),
        episodes=list(results),
        distinct_paths=distinct,
        modes=_score_modes(results, task.reporting.modes, paths, known=known),
    )


def number_results(results: Sequence[EpisodeResult]) -> tuple[int, ...]:
    """Return the number of each episode's path, see `number_paths`; all differ if a path is unknown."""
    known = [r.path for r in results if r.path is not None]
    return number_paths(known) if len(known) == len(results) else tuple(range(len(results)))


def _score_modes(
    results: Sequence[EpisodeResult], modes: int, paths: Sequence[int], *, known: bool
) -> ModeScores | None:
    if not modes:
        return None
    mode = [-1 if r.mode is None else r.mode for r in results]
    success = [bool(r.success) for r in results] if known else None
    return ModeScores.from_outcomes(ModeOutcomes.from_columns(modes, mode, success, paths))
