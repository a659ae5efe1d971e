"""Means, proportions and paired differences with 95 % intervals.

Two policies on the same seeds are compared pair by pair: the interval of their difference is far narrower
than two separate intervals suggest.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
LEVEL = 0.05
"""Significance level of p-values, matching 95 % intervals."""
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
        interval = f"n = {self.n}" if self.n < self.fewest else f"{low}, {high}"
        return f"{value} [{interval}]".replace("-", "−")


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


def proportion(successes: int, n: int, *, independent: int | None = None) -> Estimate:
    """Estimate a proportion with Wilson's interval, which is valid near 0 and 1.

    The interval is that of `independent` samples, if some of the n repeat others.
    """
    p = successes / n
    n = independent or n
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return Estimate(p, max(centre - half, 0.0), min(centre + half, 1.0), n)


def mean(values: ArrayLike, *, groups: ArrayLike | None = None) -> Estimate:
    """Estimate a mean with its percentile bootstrap interval.

    Samples that repeat others are resampled together: `groups` has one number per value, the same for
    repeats.
    """
    array = np.asarray(values, dtype=float)
    _, group = np.unique(np.arange(len(array)) if groups is None else groups, return_inverse=True)
    sums, sizes = np.bincount(group, array), np.bincount(group)
    weights = _count_resampled(len(sums))
    low, high = np.quantile((weights @ sums) / (weights @ sizes), [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high), len(sums))


def resample(groups: ArrayLike) -> np.ndarray:
    """Return how often each sample is in each resample, (RESAMPLES, n); samples of one group go together."""
    _, group = np.unique(groups, return_inverse=True)
    weights: np.ndarray = _count_resampled(int(group.max()) + 1)[:, group]
    return weights


@lru_cache(maxsize=2)  # for one and for several trainings
def _count_resampled(count: int) -> np.ndarray:
    """Return how often each row is in each resample, (RESAMPLES, count); entries of a table share it."""
    rows = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    rows += count * np.arange(RESAMPLES)[:, None]
    return np.bincount(rows.ravel(), minlength=rows.size).reshape(rows.shape).astype(float)


def paired_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """Estimate the mean of a − b over the seeds with its 95 % percentile bootstrap interval.

    Seeds are resampled, with both policies' values together. The interval covers the choice of seeds, not
    the randomness of training.
    """
    return Difference(**vars(mean(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))))


class McNemar(NamedTuple):
    """Numbers of pairs in which only one policy succeeded, and the p-value of their difference."""

    only_a: int
    only_b: int
    p: float
    """Probability of a split at least as uneven under the null hypothesis; two-sided, exact."""


def mcnemar(a: ArrayLike, b: ArrayLike) -> McNemar:
    """Compute McNemar's exact test of paired successes.

    p = min(1, 2 P(X ≤ min(n_A, n_B))) with X binomial, n_A + n_B throws of probability ½ (McNemar, 1947).
    """
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1))
    return McNemar(only_a, only_b, min(1.0, 2 * tail / 2**n))


def verdict(difference: Estimate, *, a: str, b: str, p: float | None = None) -> str:
    """Return "A ahead" or "B ahead" for the difference A − B, or that no difference is shown.

    Ahead requires an interval that excludes zero and, if p is given, p < 0.05, else at least `MIN_PAIRS`
    pairs: with very few differing pairs, a bootstrap interval alone is too narrow.
    """
    if difference.n < MIN_PAIRS if p is None else p >= LEVEL:
        return NO_DIFFERENCE
    if difference.low > 0:
        return f"{a} ahead"
    return f"{b} ahead" if difference.high < 0 else NO_DIFFERENCE
