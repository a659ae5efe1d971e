"""Scores of an evaluation: means over episodes with 95 % intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
    ms_per_action: float
    """Planning time per planned action on this machine, milliseconds, median over episodes."""
    network_calls_per_chunk: float
    episodes: list[EpisodeResult]

    def to_json(self, **context: Any) -> str:
        """Return the scores and the context they were made in as one JSON object."""
        values = {
            f"mean_{self.score_name}": asdict(self.mean_score),
            **({} if self.success_rate is None else {"success_rate": asdict(self.success_rate)}),
            **{name: asdict(estimate) for name, estimate in self.metrics.items()},
            "length": asdict(self.length),
            "mean_steps_to_success": self.mean_steps_to_success,
            "ms_per_action": self.ms_per_action,
            "network_calls_per_chunk": self.network_calls_per_chunk,
            "episodes": [episode.to_dict(self.score_name) for episode in self.episodes],
        }
        return json.dumps({**context, **values}, indent=2)

    def as_text(self) -> str:
        """Return a table for a terminal, one line per figure."""
        steps = f"{self.mean_steps_to_success:.0f}" if self.mean_steps_to_success is not None else "–"
        known = self.success_rate is not None
        rows = {
            "episodes": self.mean_score.n,
            f"mean {self.score_name}": self.mean_score,
            **({"success rate": self.success_rate} if known else {}),
            **self.metrics,
            "length": self.length,
            **({"steps to success": steps} if known else {}),
            "network calls": f"{self.network_calls_per_chunk:g} per chunk",
            "planning": f"{self.ms_per_action:.2f} ms per action",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name.replace('_', ' '):<{width}} {value}" for name, value in rows.items())


def score_episodes(results: Sequence[EpisodeResult], task: Task) -> EvaluationScores:
    """Average the outcomes of episodes of a task.

    Success is known if any episode says something of it: some environments report it only when it happens.
    """
    won = [r for r in results if r.success]
    known = any(r.success is not None for r in results)
    return EvaluationScores(
        score_name=task.score_name,
        mean_score=mean([r.score for r in results]),
        success_rate=proportion(len(won), len(results)) if known else None,
        length=mean([r.steps for r in results]),
        metrics={name: mean([r.metrics[name] for r in results]) for name in results[0].metrics},
        mean_steps_to_success=float(np.mean([r.steps for r in won])) if won else None,
        ms_per_action=float(np.median([1e3 * r.planning_s / r.planned for r in results])),
        network_calls_per_chunk=float(np.mean([r.network_calls / r.plans for r in results])),
        episodes=list(results),
    )
