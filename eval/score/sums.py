"""Averages over frames with 95 % intervals by bootstrap over episodes.

Frames of one episode are not independent, so whole episodes are resampled.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..statistics import Estimate, FloatArray, resample


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

    @functools.cached_property
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
