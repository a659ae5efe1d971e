"""Means, proportions and paired differences with 95 % intervals.

Proportions have Wilson's interval. Everything else has a bootstrap interval over episodes: the episodes are
resampled with replacement, and the interval holds 95 % of the figures of the resamples. Two policies on the
same episodes are compared pair by pair: the interval of their difference is far narrower than two separate
intervals suggest.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

FloatArray = npt.NDArray[np.float64]

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
MIN_PAIRS = 6
"""Fewest pairs that can show a difference: if all of 5 favour one side, an exact sign test gives p = 0.06."""
RESAMPLES = 10_000
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class Estimate:
    """A statistic of n samples with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    fewest: ClassVar[int] = 2
    """Fewer samples have no interval; "[n = 1]" says so."""
    sign: ClassVar[str] = ""
    """How the sign is formatted, as in a format string."""

    def __str__(self) -> str:
        """Format value and interval with about four digits. An unknown value is "–"."""
        if np.isnan(self.value):
            return "–"
        largest = np.fmax.reduce(np.abs([self.low, self.value, self.high]))  # ignores bounds that are NaN
        style = self.sign + _choose_digits(float(largest))
        value, low, high = (format(number, style) for number in (self.value, self.low, self.high))
        interval = f"{low}, {high}" if self.has_interval else f"n = {self.n}"
        return f"{value} [{interval}]".replace("-", "−")

    @property
    def has_interval(self) -> bool:
        """Whether there are enough samples for an interval."""
        return self.n >= self.fewest


class Difference(Estimate):
    """The difference of two statistics; fewer than `MIN_PAIRS` pairs give no interval."""

    fewest = MIN_PAIRS
    sign = "+"


def _choose_digits(largest: float) -> str:
    """Return the format of numbers up to `largest`; below 1e-9 they are rounding errors and print as 0."""
    if largest >= 0.01:
        return ".3f" if largest < 10 else ".2f" if largest < 100 else ".1f"
    if largest < 1e-9:
        return ".3f"
    return ".5f" if largest >= 1e-4 else ".2e"


def proportion(successes: int, n: int) -> Estimate:
    """Estimate a proportion with Wilson's interval, which is valid near 0 and 1."""
    p = successes / n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return Estimate(p, max(centre - half, 0.0), min(centre + half, 1.0), n)


@lru_cache(maxsize=4)  # for the rows of a table
def resample(n: int) -> FloatArray:
    """Return how often each of n episodes is in each resample, (RESAMPLES, n)."""
    rows = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    rows += n * np.arange(RESAMPLES)[:, None]
    return np.bincount(rows.ravel(), minlength=rows.size).reshape(rows.shape).astype(float)


def mean(values: ArrayLike) -> Estimate:
    """Estimate a mean with its bootstrap interval."""
    array = np.asarray(values, dtype=float)
    low, high = np.quantile(resample(len(array)) @ array / len(array), [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(array))


def paired_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """Estimate the mean of a − b over the seeds with its bootstrap interval.

    Seeds are resampled, with both policies' values together. The interval covers the choice of seeds, not
    the randomness of training.
    """
    return Difference(**vars(mean(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))))


def verdict(difference: Difference, *, a: str, b: str) -> str:
    """Return "A ahead" or "B ahead" for the difference A − B, or that no difference is shown.

    Ahead requires an interval that excludes zero. With fewer than `MIN_PAIRS` pairs it would be too narrow.
    """
    if difference.n >= MIN_PAIRS and difference.low > 0:
        return f"{a} ahead"
    if difference.n >= MIN_PAIRS and difference.high < 0:
        return f"{b} ahead"
    return NO_DIFFERENCE
