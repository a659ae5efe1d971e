"""Means and proportions with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Estimate:
    """A statistic of n samples with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def proportion(successes: int, n: int) -> Estimate:
    """Estimate a proportion with Wilson's interval, which is valid near 0 and 1."""
    p = successes / n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return Estimate(p, max(centre - half, 0.0), min(centre + half, 1.0), n)


def mean(values: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Estimate:
    """Estimate a mean with its percentile bootstrap interval."""
    array = np.asarray(values, dtype=float)
    rng = np.random.default_rng(seed)
    means = array[rng.integers(len(array), size=(resamples, len(array)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(array))
