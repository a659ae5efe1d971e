"""Comparisons of two policies start by start: what they share, such as hard starts, cancels.

Both play the same starts, so their difference is known start by start, and its interval is far narrower
than what two separate intervals suggest.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.statistics import Estimate, mean

LEVEL = 0.05
"""A p-value below it counts: the counterpart of 95 % intervals."""
NO_DIFFERENCE = "no difference shown"


def paired_difference(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Mean of a − b over the starts with its 95 % percentile bootstrap interval.

    Starts are drawn with replacement, both policies' values together. The interval says how far the
    difference would move on other starts, not what another training would have given.
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ComparisonError(
            f"pairs need one value per start on either side, got shapes {first.shape} and {second.shape}"
        )
    return mean((first - second).tolist(), resamples=resamples, seed=seed)


class McNemar(NamedTuple):
    """On how many pairs only one of two policies succeeded, and how surprising that split is."""

    only_a: int
    only_b: int
    p: float
    """Chance of a split at least as uneven if either side were as likely; two-sided, exact."""


def mcnemar(a: Sequence[bool] | np.ndarray, b: Sequence[bool] | np.ndarray) -> McNemar:
    """McNemar's exact test of paired successes: the pairs that differ are fair coins, or they are not.

    p = min(1, 2 P(X ≤ min(n_A, n_B))) with X binomial, n_A + n_B throws of probability ½ (McNemar, 1947).
    """
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    if first.shape != second.shape:
        raise ComparisonError(
            f"pairs need one outcome on either side, got shapes {first.shape} and {second.shape}"
        )
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1))
    return McNemar(only_a, only_b, min(1.0, 2 * tail / 2**n))


def verdict(difference: Estimate, *, a: str, b: str, p: float | None = None) -> str:
    """ "A ahead" or "B ahead" of the difference A − B; else that none is shown.

    Ahead needs an interval that excludes zero and, where a test was made, p < 0.05 as well: where very few
    pairs differ, a bootstrap alone is too bold.
    """
    if p is not None and p >= LEVEL:
        return NO_DIFFERENCE
    if difference.low > 0:
        return f"{a} ahead"
    return f"{b} ahead" if difference.high < 0 else NO_DIFFERENCE
