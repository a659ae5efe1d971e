"""Tests for nsde_policy/core/targets.py."""

import pytest
import torch
from torch import Tensor

from nsde_policy.core.targets import (
    Interpolation,
    Transitions,
    blur,
    draw_flow_target,
    draw_noise,
    noise_scale,
    pair_states,
    stack_history,
)
from nsde_policy.errors import DemoError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ornstein_uhlenbeck_slope(interpolation: Interpolation) -> float:
    """Least-squares slope of the flow target against the point it is given at; the true drift is −x."""
    dt, n = 0.05, 400_000
    x = torch.randn(n, 1, generator=seeded(), dtype=torch.float64)
    increment = -x * dt + (2 * dt) ** 0.5 * torch.randn(n, 1, generator=seeded(1), dtype=torch.float64)
    target = draw_flow_target(
        x,
        increment,
        torch.full((n, 1), dt, dtype=torch.float64),
        interpolation=interpolation,
        noise_std=torch.zeros(1, dtype=torch.float64),
        unit_noise=torch.zeros(n, 1, dtype=torch.float64),
        generator=seeded(2),
    )
    return ((target.x * target.velocity).sum() / target.x.square().sum()).item()


def test_without_interpolation_regression_finds_the_drift_of_an_ornstein_uhlenbeck_process():
    assert ornstein_uhlenbeck_slope("none") == pytest.approx(-1.0, abs=0.05)


def test_uniform_interpolation_hides_the_drift_of_an_ornstein_uhlenbeck_process():
    assert ornstein_uhlenbeck_slope("uniform") == pytest.approx(0.03, abs=0.05)


def test_interpolated_points_lie_between_the_two_states():
    x, dx = torch.zeros(1000, 1), torch.ones(1000, 1)
    nothing = torch.zeros(1000, 1)
    target = draw_flow_target(
        x, dx, torch.full((1000, 1), 0.5), interpolation="uniform", noise_std=torch.zeros(1),
        unit_noise=nothing, generator=seeded(),
    )  # fmt: skip
    assert target.x.min() >= 0
    assert target.x.max() <= 1
    assert target.x.mean().item() == pytest.approx(0.5, abs=0.05)
    torch.testing.assert_close(target.velocity, torch.full((1000, 1), 2.0))


def test_the_blur_is_what_the_denoiser_is_told_to_undo():
    x, sigma, z = torch.ones(50, 2), torch.tensor([0.1, 3.0]), torch.randn(50, 2, generator=seeded())
    target = draw_flow_target(
        x,
        torch.zeros(50, 2),
        torch.ones(50, 1),
        interpolation="none",
        noise_std=sigma,
        unit_noise=z,
        generator=seeded(),
    )
    torch.testing.assert_close(target.x - sigma * target.unit_noise, x)


def test_noise_is_absolute_or_relative_to_each_dimension_s_increments():
    spread = torch.tensor([0.01, 5.0])
    torch.testing.assert_close(noise_scale(0.7, "relative", spread), 0.7 * spread)
    torch.testing.assert_close(noise_scale(0.7, "absolute", spread), torch.tensor([0.7, 0.7]))


@pytest.mark.parametrize("kind", ["independent", "shared", "none"])
def test_history_noise_is_what_its_name_says(kind: str):
    noise = draw_noise(torch.zeros(5000, 2), history=3, kind=kind, generator=seeded())  # type: ignore[arg-type]
    now, before = noise[:, :2], noise[:, 2:4]
    assert noise.shape == (5000, 6)
    assert now.std().item() == pytest.approx(1, abs=0.05)
    expected = {"independent": 0.0, "shared": 1.0, "none": 0.0}[kind]
    assert (now * before).mean().item() == pytest.approx(expected, abs=0.05)
    assert bool((before == 0).all()) == (kind == "none")


def test_history_is_newest_first_and_stands_still_before_the_start():
    path = torch.arange(4.0).reshape(4, 1, 1).expand(4, 2, 1)
    expected = torch.tensor([[0.0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 2, 1]])
    torch.testing.assert_close(stack_history(path, 3)[:, 0], expected)


def test_transitions_pair_every_state_with_its_successor_and_its_own_time_step():
    path = torch.randn(4, 5, 2, generator=seeded())
    dt = torch.tensor([0.1, 0.2, 0.3])
    data = pair_states(path, dt=dt, history=2)
    assert (len(data), data.x.shape[1]) == (15, 4)
    torch.testing.assert_close(data.x_next.reshape(3, 5, 2), path[1:])
    torch.testing.assert_close(data.x.reshape(3, 5, 4)[..., :2], path[:-1])
    torch.testing.assert_close(data.dt.reshape(3, 5), dt[:, None].expand(3, 5))


def test_transitions_of_several_episodes_join():
    parts = [pair_states(torch.full((n, 1), float(n))) for n in (3, 5)]
    data = Transitions.cat(parts)
    torch.testing.assert_close(data.x.flatten(), torch.tensor([3.0, 3, 5, 5, 5, 5]))
    picked: Tensor = data[torch.tensor([0, 5])].x
    torch.testing.assert_close(picked.flatten(), torch.tensor([3.0, 5]))


def test_refuses_what_holds_no_transition():
    with pytest.raises(DemoError, match="needs at least two states"):
        pair_states(torch.zeros(1, 3))
    with pytest.raises(DemoError, match=r"expected x \(n, h·d\)"):
        Transitions(torch.zeros(3, 4), torch.zeros(3, 3), torch.zeros(3, 1), torch.ones(3, 3))


def test_each_state_of_a_window_is_blurred_on_its_own():
    states, std = torch.rand(4000, 3, 2, generator=seeded()), torch.tensor([0.5, 3.0])
    moved = blur(states, std, seeded(1)) - states
    torch.testing.assert_close(moved.std(0), std.expand(3, -1), rtol=0.05, atol=0)
    assert torch.corrcoef(moved.reshape(4000, -1).T).fill_diagonal_(0).abs().max() < 0.1
