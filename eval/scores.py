"""Scores of an evaluation: means over episodes with 95 % intervals."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from nsde_policy.eval.compare.entries import Episodes
from nsde_policy.eval.compare.summary import Summary
from nsde_policy.eval.rollout import EpisodeResult
from nsde_policy.eval.statistics import Estimate
from nsde_policy.tasks import Task


@dataclass(frozen=True)
class EvaluationScores(Summary):
    """Figures over all episodes of an evaluation."""

    episodes: list[EpisodeResult]
    columns: Episodes
    score_name: str
    """What the task calls its score, such as "max_reward"."""

    @property
    def trainings(self) -> tuple[Episodes, ...]:
        """The episodes, of one training."""
        return (self.columns,)

    @cached_property
    def metrics(self) -> dict[str, Estimate]:
        """Means of the task's further figures."""
        return {name: self.estimate_metric(name) for name in self.columns.metrics}

    @property
    def mean_steps_to_success(self) -> float | None:
        """Mean number of steps before the first success, over successful episodes; None without any."""
        needed = [r.steps_to_success for r in self.episodes if r.steps_to_success is not None]
        return float(np.mean(needed)) if needed else None

    @property
    def ms_per_action(self) -> float:
        """Planning time per planned action on this machine, milliseconds, median over episodes."""
        return float(np.median([1e3 * r.planning_s / r.planned for r in self.episodes]))

    @property
    def network_calls_per_chunk(self) -> float:
        """Mean number of network calls for one plan."""
        return float(np.mean([r.network_calls / r.plans for r in self.episodes]))

    def to_json(self, **context: object) -> str:
        """Return the scores and the context they were made in as one JSON object."""
        values = {
            f"mean_{self.score_name}": asdict(self.score),
            **({} if self.success is None else {"success_rate": asdict(self.success)}),
            **{name: asdict(estimate) for name, estimate in self.metrics.items()},
            "length": asdict(self.steps),
            "mean_steps_to_success": self.mean_steps_to_success,
            "ms_per_action": self.ms_per_action,
            "network_calls_per_chunk": self.network_calls_per_chunk,
            "distinct_paths": self.distinct_paths,
            **self._list_mode_values(),
            "episodes": [episode.to_dict(self.score_name) for episode in self.episodes],
        }
        return json.dumps({**context, **values}, indent=2, allow_nan=False)

    def _list_mode_values(self) -> dict[str, object]:
        """Return what JSON says of modes; empty if the task has none."""
        if self.diversity is None:
            return {}
        (outcomes,) = self.outcomes
        return {
            "modes": len(outcomes.counts),
            "distinct_modes": outcomes.observed,
            "successes_by_mode": outcomes.counts.tolist(),
            "successes_of_unknown_mode": outcomes.unknown,
            "entropy": asdict(self.diversity.entropy),
            "entropy_of_frequencies": outcomes.plain_entropy,
            "success_times_entropy": asdict(self.diversity.product),
        }

    def as_text(self) -> str:
        """Return a table for a terminal, one line per figure."""
        steps = f"{self.mean_steps_to_success:.0f}" if self.mean_steps_to_success is not None else "–"
        known = self.success is not None
        rows = {
            "episodes": len(self.episodes),
            **self._describe_paths(),
            f"mean {self.score_name}": self.score,
            **({"success rate": self.success} if known else {}),
            **self._describe_modes(),
            **self.metrics,
            "length": self.steps,
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
            return {} if self.diversity is None else {"distinct paths": str(count)}
        samples = "1 distinct path" if count == 1 else f"{count} distinct paths"
        return {"distinct paths": f"{count}: episodes repeat paths, so intervals have n = {samples}"}

    def _describe_modes(self) -> dict[str, str]:
        """Return lines about modes, if the task has some."""
        if self.diversity is None:
            return {}
        (outcomes,) = self.outcomes
        n = int(outcomes.counts.sum())
        unknown = f", {outcomes.unknown} unknown" if outcomes.unknown else ""
        found = {"distinct modes": f"{outcomes.observed} of {len(outcomes.counts)} in {n} successes{unknown}"}
        if not n:
            return {**found, "entropy": "– (no successes)"}
        return {
            **found,
            "entropy": f"{self.diversity.entropy}, without correction {outcomes.plain_entropy:.3f}",
            "success × entropy": str(self.diversity.product),
        }


def score_episodes(results: Sequence[EpisodeResult], task: Task) -> EvaluationScores:
    """Summarise the outcomes of episodes of a task."""
    columns = Episodes.from_results(results, task, decimals=None)
    return EvaluationScores(list(results), columns, task.score_name)
