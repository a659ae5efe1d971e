"""Modes of successful episodes: entropy, and success × entropy.

Entropy is that of the observed frequencies p of the modes, in units of the number M of the task's modes:

    H = −Σ p ln p / ln M

It is 1 if all modes are taken equally often, 0 if only one is taken. Observed frequencies underestimate it,
and resamples of them underestimate it once more, by about as much. Therefore the bootstrap corrects the bias:
value and interval are H minus the mean and the quantiles of the errors of resamples (the basic bootstrap).
Modes that no episode took remain unknown.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..statistics import Estimate, resample


@dataclass(frozen=True, eq=False)
class ModeOutcomes:
    """Successes of one policy by mode, episode by episode."""

    success: np.ndarray
    """Whether each episode succeeded, (n,) bool."""
    taken: np.ndarray
    """Whether each episode succeeded in each mode, (n, modes) of 0 and 1; all 0 if its mode is unknown."""

    @classmethod
    def from_columns(cls, modes: int, mode: Sequence[int], success: Sequence[bool] | None) -> "ModeOutcomes":
        """Make outcomes from columns of episodes; all succeed if successes are not reported."""
        succeeded = np.ones(len(mode), bool) if success is None else np.array(success, bool)
        taken = np.array(mode)[:, None] == np.arange(modes)
        return cls(succeeded, taken * succeeded[:, None] * 1.0)

    @property
    def counts(self) -> np.ndarray:
        """Successes in each mode, (modes,)."""
        counts: np.ndarray = self.taken.sum(axis=0).astype(int)
        return counts

    @property
    def observed(self) -> int:
        """Number of modes with at least one success."""
        return int((self.counts > 0).sum())

    def measure(self, weights: np.ndarray) -> np.ndarray:
        """Return entropy and success × entropy, (..., 2), if episodes count `weights` times, (..., n)."""
        entropy = compute_entropy(weights @ self.taken)
        rate = (weights @ self.success) / np.maximum(weights.sum(axis=-1), 1.0)
        return np.stack([entropy, rate * entropy], axis=-1)


def compute_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of counts, (..., modes), in units of ln modes; 0 without any."""
    counts = np.asarray(counts, float)
    p = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    nats = (p * np.log(1 / np.where(p > 0, p, 1.0))).sum(axis=-1)
    entropy: np.ndarray = nats / math.log(max(counts.shape[-1], 2))
    return entropy


def estimate_modes(trainings: Sequence[ModeOutcomes], paths: ArrayLike) -> tuple[Estimate, Estimate]:
    """Estimate the means over trainings of entropy and of success × entropy.

    Each training has an entropy of its own: several policies that take one mode each are not diverse.
    Episodes with the same number in `paths`, one for each episode of all trainings, are resampled together.
    """
    weights = resample(paths)
    ends = np.cumsum([len(outcomes.success) for outcomes in trainings])[:-1]
    entropy, product = _measure(trainings, np.split(np.ones(weights.shape[1]), ends))
    resampled = _measure(trainings, np.split(weights, ends, axis=1)).T
    n = len(np.unique(paths))
    return _estimate(entropy, resampled[0], n), _estimate(product, resampled[1], n)


def compare_modes(first: Sequence[ModeOutcomes], second: Sequence[ModeOutcomes], *, n: int) -> Estimate:
    """Estimate the difference of success × entropy of two methods, first − second, paired by seed.

    Both are outcomes of trainings on the same seeds; the estimate is that of `n` samples.
    """
    once = np.ones(len(first[0].success))
    weights = resample(np.arange(len(once)))
    value, resampled = (
        _measure(first, [counts] * len(first)) - _measure(second, [counts] * len(second))
        for counts in (once, weights)
    )
    return _estimate(value[1], resampled[:, 1], n, lowest=-1.0)


def _measure(trainings: Sequence[ModeOutcomes], weights: Sequence[np.ndarray]) -> np.ndarray:
    """Return the means over trainings of entropy and success × entropy, (..., 2)."""
    means: np.ndarray = np.mean(
        [outcomes.measure(counts) for outcomes, counts in zip(trainings, weights, strict=True)], axis=0
    )
    return means


def _estimate(value: float, resampled: np.ndarray, n: int, *, lowest: float = 0.0) -> Estimate:
    """Return a value of n samples without its bias, and its basic bootstrap interval, from `lowest` to 1."""
    ends = np.array([resampled.mean(), *np.quantile(resampled, [0.975, 0.025])])
    value, low, high = np.clip(2 * value - ends, lowest, 1.0).tolist()
    return Estimate(value, low, high, n)
