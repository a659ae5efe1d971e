"""Tests for eval/statistics.py: against brute force, closed forms and simulated experiments."""

import math

import numpy as np
import pytest

from nsde_policy.eval.statistics import (
    NO_DIFFERENCE,
    Z95,
    Difference,
    Estimate,
    mean_proportion,
    paired_difference,
    proportion,
    verdict,
)


def test_proportions_have_wilsons_interval():
    assert str(proportion(6, 6)) == "1.000 [0.610, 1.000]"
    assert str(proportion(0, 6)) == "0.000 [0.000, 0.390]"


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
    ("low", "high", "n", "expected"),
    [
        (0.01, 0.2, 6, "ours ahead"),
        (-0.2, -0.01, 6, "theirs ahead"),
        (0.0, 0.1, 100, NO_DIFFERENCE),
        (0.01, 0.2, 5, NO_DIFFERENCE),
    ],
)
def test_ahead_requires_an_interval_without_zero_and_enough_pairs(low, high, n, expected):
    assert verdict(Difference((low + high) / 2, low, high, n), a="ours", b="theirs") == expected


def test_mean_over_tasks_varies_with_tasks_and_episodes():
    alike = mean_proportion([30, 30, 30, 30], [60, 60, 60, 60])
    assert alike.value == 0.5
    assert alike.high - alike.low == pytest.approx(2 * Z95 * (0.25 / 240) ** 0.5, rel=0.05), "episodes alone"
    apart = mean_proportion([60, 0, 60, 0], [60, 60, 60, 60])
    assert (apart.value, apart.low, apart.high) == (0.5, 0.0, 1.0), "tasks alone"
    assert mean_proportion([1, 0], [1, 100]).value == 0.5, "tasks count alike"
