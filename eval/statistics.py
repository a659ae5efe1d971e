"""Means, proportions and paired differences with 95 % intervals.

Proportions have Wilson's interval. Everything else has a bootstrap interval over episodes: the episodes are
resampled with replacement, and the interval holds 95 % of the figures of the resamples. Frames of one episode
are not independent, so their figures are resampled by whole episodes too. Two policies on the same episodes
are compared pair by pair: the interval of their difference is far narrower than two separate intervals
suggest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

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


def mean_proportion(successes: Sequence[int], n: Sequence[int]) -> Estimate:
    """Estimate the mean over tasks of the proportion of successes in the `n` episodes of each.

    Tasks are resampled, and then the episodes of each.
    """
    counts, proportions = np.asarray(n), np.divide(successes, n)
    rng = np.random.default_rng(0)
    tasks = rng.integers(len(counts), size=(RESAMPLES, len(counts)))
    means = (rng.binomial(counts[tasks], proportions[tasks]) / counts[tasks]).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(proportions.mean()), float(low), float(high), len(counts))


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


class Intervals(NamedTuple):
    """Values with the bounds of their 95 % intervals, arrays of equal shape; bounds are NaN if unknown."""

    value: FloatArray
    low: FloatArray
    high: FloatArray

    def at(self, *index: int, n: int = 0) -> Estimate:
        """Return one of the values with its interval, of `n` episodes."""
        value, low, high = (float(array[index]) for array in self)
        return Estimate(value, low, high, n)

    def to_dict(self) -> dict[str, object]:
        """Convert to nested lists with None for NaN."""
        return {name: replace_nan(array.tolist()) for name, array in self._asdict().items()}


@dataclass(frozen=True)
class EpisodeSums:
    """Sums over the frames of each episode, whose ratio is a mean over frames."""

    total: FloatArray
    """Sum of a quantity over the frames of each episode, (episodes, ...)."""
    count: FloatArray
    """Number of summed frames, same shape."""
    root: bool = False
    """Whether the quantity is squared, so that the figure is a root mean square."""

    def compute(self, weights: FloatArray | None = None) -> FloatArray:
        """Return the figure over all episodes, (...), or of each resample, (resamples, ...).

        Weights (resamples, episodes) count how often each episode is in each resample.
        """
        if weights is None:
            (whole,) = self.compute(np.ones((1, len(self.total))))
            return np.asarray(whole)
        with np.errstate(invalid="ignore", divide="ignore"):
            figure: FloatArray = np.tensordot(weights, self.total, 1) / np.tensordot(weights, self.count, 1)
            return np.sqrt(figure) if self.root else figure

    @cached_property
    def intervals(self) -> Intervals:
        """The figures with their 95 % intervals; one episode gives no interval."""
        return _find_intervals(self.compute(), self.compute(resample(len(self.total))), len(self.total))

    def at(self, *index: int) -> Estimate:
        """Return one of the figures with its interval."""
        return self.intervals.at(*index, n=len(self.total))

    def __getitem__(self, index: Any) -> "EpisodeSums":
        """Return some of the figures, indexed as an array; axis 0 is the episode."""
        return EpisodeSums(self.total[index], self.count[index], self.root)

    def pool(self, *axes: int) -> "EpisodeSums":
        """Average over axes as well, counted with the episodes as axis 0."""
        return EpisodeSums(self.total.sum(axes), self.count.sum(axes), self.root)


def estimate_difference(a: EpisodeSums, b: EpisodeSums) -> Intervals:
    """Return the difference a − b of two figures of the same episodes with its 95 % interval.

    Both are computed on the same resampled episodes, so that what an episode does to both cancels.
    """
    weights = resample(len(a.total))
    return _find_intervals(a.compute() - b.compute(), a.compute(weights) - b.compute(weights), len(a.total))


def _find_intervals(value: FloatArray, resampled: FloatArray, episodes: int) -> Intervals:
    """Return values (...) with the 95 % percentile interval of their resamples (resamples, ...)."""
    unknown = np.full_like(value, np.nan)
    if episodes < 2:
        return Intervals(value, unknown, unknown)
    if np.isfinite(resampled).all():  # much faster than with NaN
        return Intervals(value, *np.quantile(resampled, [0.025, 0.975], axis=0))
    # A resample may hold no episode that counts. A figure without any episode has no interval.
    low, high = np.nanquantile(np.where(np.isfinite(value), resampled, 0.0), [0.025, 0.975], axis=0)
    return Intervals(value, *np.where(np.isfinite(value), [low, high], np.nan))


def replace_nan(values: object) -> object:
    """Replace NaN and infinity in nested lists by None, which JSON can hold."""
    if isinstance(values, list):
        return [replace_nan(value) for value in values]
    return values if isinstance(values, float) and math.isfinite(values) else None
