"""Modes of successful episodes: entropy, and success × entropy, with 95 % intervals.

Entropy has the number of the task's modes as base: 1 if all are taken equally often, 0 if only one is taken.
The observed frequencies p̂ of n successes underestimate it by about (K − 1) / (2 n ln M), for K of M modes.
The estimate is Miller and Madow's, which adds this amount for the K modes that were observed:

    H = (−Σ p̂ ln p̂ + (K − 1) / 2n) / ln M, at most 1.

Intervals are basic bootstrap intervals: the errors of H on resampled episodes, against the entropy of the
frequencies they were drawn from, are subtracted from H. Episodes that repeat a path are drawn together. One
distinct path of successes has no interval.

Resamples of successes in one mode have one mode as well, so their errors are 0. Such a training widens the
upper end by the largest entropy that its m distinct paths do not exclude: that of a share 1 − 0.05^(1 / m) of
other modes, the upper 95 % limit of Clopper and Pearson (1934), spread over them evenly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsde_policy.eval.statistics import LEVEL, Estimate, draw_counts


@dataclass(frozen=True, eq=False)
class ModeOutcomes:
    """Successes of one policy by mode, episode by episode."""

    success: np.ndarray
    """Whether each episode succeeded, (n,) bool."""
    taken: np.ndarray
    """Whether each episode succeeded in each mode, (n, modes) of 0 and 1; all 0 if its mode is unknown."""
    path: np.ndarray
    """Number of the distinct path of each episode, (n,)."""

    @classmethod
    def from_columns(
        cls, modes: int, mode: Sequence[int], success: Sequence[bool] | None, path: Sequence[int] | None
    ) -> "ModeOutcomes":
        """Make outcomes from columns of episodes; by default all succeed, on different paths."""
        won = np.ones(len(mode), bool) if success is None else np.array(success, bool)
        taken = np.array(mode)[:, None] == np.arange(modes)
        return cls(won, taken * won[:, None] * 1.0, np.array(range(len(mode)) if path is None else path))

    @property
    def counts(self) -> np.ndarray:
        """Successes in each mode, (modes,)."""
        counts: np.ndarray = self.taken.sum(axis=0).astype(int)
        return counts

    @property
    def observed(self) -> int:
        """Number of modes with at least one success."""
        return int((self.counts > 0).sum())

    @property
    def distinct(self) -> int:
        """Number of distinct paths."""
        return len(np.unique(self.path))

    @property
    def distinct_successes(self) -> int:
        """Number of distinct paths of successes whose mode is known."""
        return len(np.unique(self.path[self.taken.any(axis=1)]))

    def measure(self, weights: np.ndarray, *, corrected: bool = True) -> np.ndarray:
        """Return entropy and success × entropy, (..., 2), if episodes count `weights` times, (..., n)."""
        entropy = compute_entropy(weights @ self.taken, corrected=corrected)
        rate = (weights @ self.success) / weights.sum(axis=-1)
        return np.stack([entropy, rate * entropy], axis=-1)

    def bound_unseen(self) -> np.ndarray:
        """Return how much unseen modes may add to entropy and to success × entropy, (2,), if one was seen.

        A policy that repeats one path, or never succeeds, has none to add.
        """
        if self.observed != 1 or self.distinct == 1:
            return np.zeros(2)
        others = self.counts.size - 1
        share = min(1 - LEVEL ** (1 / self.distinct_successes), others / (others + 1))
        shares = np.array([1 - share, *[share / max(others, 1)] * others])
        bound: np.ndarray = compute_entropy(shares, corrected=False) * np.array([1.0, self.success.mean()])
        return bound


@dataclass(frozen=True)
class Diversity:
    """Entropy of the modes of successes, and its product with success."""

    entropy: Estimate
    product: Estimate

    @classmethod
    def from_errors(
        cls, values: np.ndarray, errors: np.ndarray, n: int, *, lowest: float, unseen: Sequence[np.ndarray]
    ) -> "Diversity":
        """Make estimates with basic bootstrap intervals, given two values and their errors on resamples.

        `unseen` holds what unseen modes may take from and add to the values, (2,) each.
        """
        less, more = unseen
        ends = values - np.quantile(errors, [0.975, 0.025], axis=0) + np.stack([-less, more])
        (low, low2), (high, high2) = np.clip(ends, lowest, 1.0).tolist()
        return cls(Estimate(float(values[0]), low, high, n), Estimate(float(values[1]), low2, high2, n))


def compute_entropy(counts: np.ndarray, *, corrected: bool = True) -> np.ndarray:
    """Return the entropy of counts, (..., modes), in units of ln modes; 0 without any.

    With `corrected`, it is Miller and Madow's estimate, else the entropy of the observed frequencies.
    """
    counts = np.asarray(counts, float)
    n = np.maximum(counts.sum(axis=-1), 1.0)
    p = counts / n[..., None]
    nats = (p * np.log(1 / np.where(p > 0, p, 1.0))).sum(axis=-1)
    if corrected:
        nats = nats + np.maximum((counts > 0).sum(axis=-1) - 1, 0) / (2 * n)
    entropy: np.ndarray = np.minimum(nats / math.log(max(counts.shape[-1], 2)), 1.0)
    return entropy


def estimate_diversity(trainings: Sequence[ModeOutcomes], *, n: int) -> Diversity:
    """Estimate the mean over trainings of entropy and of success × entropy, from n distinct paths.

    Each training has an entropy of its own: several policies that take one mode each are not diverse. If no
    training has two distinct paths of successes, their number, 0 or 1, is the n of the estimates.
    """
    successes = max(each.distinct_successes for each in trainings)
    values, errors, more = _measure_trainings(trainings, _draw_weights([each.path for each in trainings]))
    samples = n if successes > 1 else successes
    return Diversity.from_errors(values, errors, samples, lowest=0.0, unseen=(np.zeros(2), more))


def compare_diversity(first: Sequence[ModeOutcomes], second: Sequence[ModeOutcomes], *, n: int) -> Diversity:
    """Estimate the differences of two methods, first − second, with bootstrap intervals paired by seed.

    Both are outcomes of trainings on the same seeds, with `n` distinct paths.
    """
    (weights,) = _draw_weights([np.arange(len(first[0].path))])
    one, error, more = _measure_trainings(first, [weights] * len(first))
    two, other_error, less = _measure_trainings(second, [weights] * len(second))
    return Diversity.from_errors(one - two, error - other_error, n, lowest=-1.0, unseen=(less, more))


def _draw_weights(paths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Draw how often each episode counts, (COUNT_RESAMPLES, n) for each training.

    Episodes with the same path count together.
    """
    groups = [np.unique(path, return_inverse=True)[1] for path in paths]
    drawn = draw_counts(tuple(int(group.max()) + 1 for group in groups))
    return [counts[:, group] for counts, group in zip(drawn, groups, strict=True)]


def _measure_trainings(
    trainings: Sequence[ModeOutcomes], weights: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the means over trainings of entropy and success × entropy, (2,).

    Also returns their errors on resamples, (COUNT_RESAMPLES, 2), and what unseen modes may add to them, (2,).
    """
    values, errors = [], []
    for each, drawn in zip(trainings, weights, strict=True):
        once = np.ones(len(each.path))
        values.append(each.measure(once))
        errors.append(each.measure(drawn) - each.measure(once, corrected=False))
    unseen = [each.bound_unseen() for each in trainings]
    return np.mean(values, axis=0), np.mean(errors, axis=0), np.mean(unseen, axis=0)
