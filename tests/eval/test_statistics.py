"""Tests for eval/statistics.py: against brute force, closed forms and simulated experiments."""

import itertools
import math

import numpy as np
import pytest

from nsde_policy.eval.statistics import (
    NO_DIFFERENCE,
    Difference,
    Estimate,
    mcnemar,
    paired_difference,
    verdict,
)


def outcomes(only_a: int, only_b: int, both: int = 2, neither: int = 3) -> tuple[list[bool], list[bool]]:
    a = [True] * only_a + [False] * only_b + [True] * both + [False] * neither
    b = [False] * only_a + [True] * only_b + [True] * both + [False] * neither
    return a, b


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (0, 5), (3, 3), (7, 2), (1, 9)])
def test_mcnemar_matches_enumeration(only_a: int, only_b: int):
    n, gap = only_a + only_b, abs(only_a - only_b)
    falls = [abs(2 * sum(coins) - n) for coins in itertools.product((0, 1), repeat=n)]
    expected = sum(fall >= gap for fall in falls) / 2**n
    found = mcnemar(*outcomes(only_a, only_b))
    assert found == (only_a, only_b, pytest.approx(expected))


def test_bootstrap_interval_approaches_the_normal_interval():
    rng = np.random.default_rng(2)
    a, b = rng.normal(0.3, 1.0, 2000), rng.normal(0.0, 2.0, 2000)
    found = paired_difference(a, b)
    half = 1.96 * (a - b).std() / math.sqrt(2000)
    assert found.value == pytest.approx((a - b).mean())
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.1 * half)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.8125, math.nan, math.nan, 1), "0.812 [n = 1]"),
        ((24.6789, math.nan, math.nan, 1), "24.68 [n = 1]"),
        ((math.nan, math.nan, math.nan, 5), "–"),
        ((0.0314, 0.028, 0.034, 10), "0.031 [0.028, 0.034]"),
        ((0.0042, 0.0038, 0.0047, 10), "0.00420 [0.00380, 0.00470]"),
        ((2e-5, 1e-5, 4e-5, 10), "2.00e−05 [1.00e−05, 4.00e−05]"),
        ((1e-11, 0.0, 3e-11, 10), "0.000 [0.000, 0.000]"),
        ((-1234.5, -1300.0, -1200.0, 10), "−1234.5 [−1300.0, −1200.0]"),
    ],
)
def test_estimates_print_with_few_digits(values: tuple[float, float, float, int], text: str):
    assert str(Estimate(*values)) == text


def test_differences_have_signs_and_need_enough_pairs():
    assert str(Difference(0.25, -0.5, 1.0, 6)) == "+0.250 [−0.500, +1.000]"
    assert str(Difference(0.25, 0.1, 1.0, 5)) == "+0.250 [n = 5]"


@pytest.mark.parametrize(
    ("low", "high", "p", "expected"),
    [
        (0.01, 0.2, None, "ours ahead"),
        (-0.2, -0.01, 0.001, "theirs ahead"),
        (-0.1, 0.1, 0.001, NO_DIFFERENCE),
        (0.0, 0.1, None, NO_DIFFERENCE),
        (0.01, 0.2, 0.05, NO_DIFFERENCE),
    ],
)
def test_ahead_requires_interval_and_p_value(low, high, p, expected):
    difference = Estimate((low + high) / 2, low, high, 100)
    assert verdict(difference, a="ours", b="theirs", p=p) == expected
