"""What an evaluation found, summed up."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nsde_policy.eval.rollout import EpisodeResult
from nsde_policy.eval.statistics import Estimate, mean, proportion


@dataclass(frozen=True)
class Scores:
    """What an evaluation found."""

    mean_max_reward: Estimate
    """The paper's and the benchmark's column: mean of max clip(coverage / 0.95, 0, 1)."""
    success_rate: Estimate
    """Share of episodes with coverage above 0.95 within 300 steps."""
    final_coverage: Estimate
    mean_steps_to_success: float | None
    ms_per_action: float
    """Planning time per planned action, in milliseconds, median over episodes; this machine's."""
    network_calls_per_chunk: float
    episodes: list[EpisodeResult]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """For people."""
        steps = f"{self.mean_steps_to_success:.0f}" if self.mean_steps_to_success is not None else "–"
        return "\n".join(
            [
                f"episodes         {self.success_rate.n}",
                f"mean max reward  {self.mean_max_reward}",
                f"success rate     {self.success_rate}",
                f"final coverage   {self.final_coverage}",
                f"steps to success {steps}",
                f"network calls    {self.network_calls_per_chunk:g} per chunk",
                f"planning         {self.ms_per_action:.2f} ms per action",
            ]
        )


def score(results: Sequence[EpisodeResult]) -> Scores:
    """Sum up episodes."""
    won = [r for r in results if r.success]
    chunk = [r.network_calls / r.plans for r in results]
    return Scores(
        mean_max_reward=mean([r.max_reward for r in results]),
        success_rate=proportion(len(won), len(results)),
        final_coverage=mean([r.final_coverage for r in results]),
        mean_steps_to_success=float(np.mean([r.steps for r in won])) if won else None,
        ms_per_action=float(np.median([1e3 * r.planning_s / r.planned for r in results])),
        network_calls_per_chunk=float(np.mean(chunk)),
        episodes=list(results),
    )


def to_json(scores: Scores, **context: Any) -> str:
    """The scores and what they were made with, as one JSON object."""
    return json.dumps({**context, **scores.as_dict()}, indent=2)
