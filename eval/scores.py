"""Scores with intervals: a number without one is an anecdote."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nsde_policy.eval.rollout import EpisodeResult

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal law."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n episodes with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(successes: int, n: int) -> Estimate:
    """A share with Wilson's interval, which is honest near 0 and 1."""
    p = successes / n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return Estimate(p, max(centre - half, 0.0), min(centre + half, 1.0), n)


def mean(values: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """A mean with its percentile bootstrap interval."""
    array = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    means = array[rng.integers(len(array), size=(resamples, len(array)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(array))


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
        ms_per_action=float(np.median([1e3 * r.planning_s / r.network_calls for r in results])),
        network_calls_per_chunk=float(np.mean(chunk)),
        episodes=list(results),
    )


def to_json(scores: Scores, **context: Any) -> str:
    """The scores and what they were made with, as one JSON object."""
    return json.dumps({**context, **scores.as_dict()}, indent=2)
