"""Modes of successful episodes: entropy, and success × entropy.

Entropy of the observed frequencies p of the modes, of which the task has M:

    H = −Σ p ln p / ln M

It is 1 if all modes are taken equally often, 0 if only one is taken. Observed frequencies underestimate it,
and resamples of them underestimate it once more, by about as much. Therefore the bootstrap corrects the bias:
value and interval are H minus the mean and the quantiles of the errors of resamples (the basic bootstrap).
Modes that no episode took remain unknown.
"""

import math
from collections.abc import Sequence

import numpy as np

from .episodes import Episodes
from .statistics import Estimate, resample


def compute_entropy(counts: np.ndarray) -> np.ndarray:
    """Return the entropy of counts, (..., modes), in units of ln modes; 0 without any."""
    counts = np.asarray(counts, float)
    p = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
    nats = (p * np.log(1 / np.where(p > 0, p, 1.0))).sum(axis=-1)
    entropy: np.ndarray = nats / math.log(max(counts.shape[-1], 2))
    return entropy


def estimate_modes(trainings: Sequence[Episodes]) -> tuple[Estimate, Estimate]:
    """Estimate the means over trainings of entropy and of success × entropy.

    The entropy is computed for each training: several policies that take one mode each are not diverse.
    """
    n = sum(map(len, trainings))
    weights = resample(n)
    ends = np.cumsum([len(episodes) for episodes in trainings])[:-1]
    entropy, product = _measure(trainings, np.split(np.ones(n), ends))
    resampled = _measure(trainings, np.split(weights, ends, axis=1)).T
    return _correct(entropy, resampled[0], n), _correct(product, resampled[1], n)


def compare_modes(first: Sequence[Episodes], second: Sequence[Episodes]) -> Estimate:
    """Estimate the difference of success × entropy of two methods, first − second, paired by seed.

    Both are episodes of trainings on the same seeds.
    """
    n = len(first[0])
    value, resampled = (
        _measure(first, [weights] * len(first)) - _measure(second, [weights] * len(second))
        for weights in (np.ones(n), resample(n))
    )
    return _correct(value[1], resampled[:, 1], n, lowest=-1.0)


def _measure(trainings: Sequence[Episodes], weights: Sequence[np.ndarray]) -> np.ndarray:
    """Return the means over trainings of entropy and success × entropy, (..., 2).

    Episodes count as often as their `weights`, (..., episodes) for each training.
    """
    figures = []
    for episodes, counts in zip(trainings, weights, strict=True):
        entropy = compute_entropy(counts @ episodes.modes_taken)
        rate = (counts @ episodes.succeeded) / np.maximum(counts.sum(axis=-1), 1.0)
        figures.append(np.stack([entropy, rate * entropy], axis=-1))
    means: np.ndarray = np.mean(figures, axis=0)
    return means


def _correct(value: float, resampled: np.ndarray, n: int, *, lowest: float = 0.0) -> Estimate:
    """Return a value of n samples without its bias, and its basic bootstrap interval, from `lowest` to 1."""
    ends = np.array([resampled.mean(), *np.quantile(resampled, [0.975, 0.025])])
    value, low, high = np.clip(2 * value - ends, lowest, 1.0).tolist()
    return Estimate(value, low, high, n)
