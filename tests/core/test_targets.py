"""Tests for nsde_policy/core/targets.py."""

import pytest
import torch

from nsde_policy.core.targets import (
    HistoryNoise,
    Interpolation,
    add_noise,
    noise_scale,
    sample_noise,
    sample_training_point,
    stack_history,
)
from tests.helpers.rng import make_rng


@pytest.mark.parametrize(("interpolation", "slope"), [("none", -1.0), ("uniform", 0.03)])
def test_regression_finds_a_drift_only_without_interpolation(interpolation: Interpolation, slope: float):
    """Compare the least-squares slope of the flow target against its state; the true drift is −x."""
    dt, n = 0.05, 400_000
    x = torch.randn(n, 1, generator=make_rng(), dtype=torch.float64)
    increment = -x * dt + (2 * dt) ** 0.5 * torch.randn(n, 1, generator=make_rng(1), dtype=torch.float64)
    target = sample_training_point(
        x,
        increment,
        torch.full((n, 1), dt, dtype=torch.float64),
        interpolation=interpolation,
        noise_std=torch.zeros(1, dtype=torch.float64),
        unit_noise=torch.zeros(n, 1, dtype=torch.float64),
        generator=make_rng(2),
    )
    fitted_slope = (target.noisy_x * target.velocity).sum() / target.noisy_x.square().sum()
    assert fitted_slope.item() == pytest.approx(slope, abs=0.05)


def test_interpolated_points_lie_between_the_two_states():
    x, dx = torch.zeros(1000, 1), torch.ones(1000, 1)
    zeros = torch.zeros(1000, 1)
    target = sample_training_point(
        x, dx, torch.full((1000, 1), 0.5), interpolation="uniform", noise_std=torch.zeros(1),
        unit_noise=zeros, generator=make_rng(),
    )  # fmt: skip
    assert target.noisy_x.min() >= 0
    assert target.noisy_x.max() <= 1
    assert target.noisy_x.mean().item() == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(target.velocity, torch.full((1000, 1), 2.0))


def test_noise_is_absolute_or_relative_to_the_increments_of_each_dimension():
    spread = torch.tensor([0.01, 5.0])
    torch.testing.assert_close(noise_scale(0.7, "relative", spread), 0.7 * spread)
    torch.testing.assert_close(noise_scale(0.7, "absolute", spread), torch.tensor([0.7, 0.7]))


@pytest.mark.parametrize(("older", "correlation"), [("independent", 0.0), ("shared", 1.0)])
def test_history_noise_is_independent_or_shared(older: HistoryNoise, correlation: float):
    noise = sample_noise(torch.zeros(5000, 2), history=3, older=older, generator=make_rng())
    now, before = noise[:, :2], noise[:, 2:4]
    assert noise.shape == (5000, 6)
    assert now.std().item() == pytest.approx(1, abs=0.05)
    assert (now * before).mean().item() == pytest.approx(correlation, abs=0.05)


def test_history_is_newest_first_and_repeats_the_first_state_before_the_start():
    path = torch.arange(4.0).reshape(4, 1, 1).expand(4, 2, 1)
    expected = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1]])
    torch.testing.assert_close(stack_history(path, 3)[:, 0], expected)


def test_noise_of_the_states_of_a_window_is_independent():
    states, std = torch.rand(4000, 3, 2, generator=make_rng()), torch.tensor([0.5, 3.0])
    moved = add_noise(states, std, make_rng(1)) - states
    torch.testing.assert_close(moved.std(0), std.expand(3, -1), rtol=0.05, atol=0)
    assert torch.corrcoef(moved.reshape(4000, -1).T).fill_diagonal_(0).abs().max() < 0.1
