"""Tests for nsde_policy/core/sde.py, against processes with known distributions."""

import math
from typing import Any

import pytest
import torch
import torchsde
from torch import Tensor

from nsde_policy.core.sde import (
    SDE,
    Coefficients,
    euler_maruyama,
    increment_log_prob,
)
from nsde_policy.errors import ConfigError
from tests.helpers.rng import make_rng


class OrnsteinUhlenbeck:
    """dx = −θ x dt + σ dw: mean x₀e^(−θt), variance σ²(1 − e^(−2θt)) / 2θ."""

    theta, sigma = 1.5, 0.4

    def __call__(self, x: Tensor) -> Coefficients:
        return Coefficients(-self.theta * x, torch.full_like(x, self.sigma))


class GeometricBrownianMotion:
    """dx = μ x dt + σ x dw: x₀ exp((μ − σ²/2) t + σ w); mean x₀e^(μt), variance x₀²e^(2μt)(e^(σ²t) − 1)."""

    mu, sigma = 1.0, 0.5

    def __call__(self, x: Tensor) -> Coefficients:
        return Coefficients(self.mu * x, self.sigma * x)


def rescale(sde: SDE, factor: float) -> SDE:
    """Return f/λ and g/√λ: the same process in another unit of time (Eq. 26)."""

    def rescaled(x: Tensor) -> Coefficients:
        drift, diffusion = sde(x)
        return Coefficients(drift / factor, diffusion / math.sqrt(factor))

    return rescaled


@pytest.mark.parametrize("factor", [0.1, 3.0, 50.0])
def test_paths_do_not_depend_on_the_unit_of_time(factor: float):
    """Eq. 25 to 31: f/λ and g/√λ over λΔt give the same chain up to rounding, given the same noise."""
    sde, x0 = GeometricBrownianMotion(), torch.ones(100, 3, dtype=torch.float64)
    noise = torch.randn(50, 100, 3, generator=make_rng(), dtype=torch.float64)
    one = euler_maruyama(sde, x0, dt=0.01, steps=50, noise=noise)
    other = euler_maruyama(rescale(sde, factor), x0, dt=0.01 * factor, steps=50, noise=noise)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sde", [OrnsteinUhlenbeck(), GeometricBrownianMotion()])
def test_agrees_with_torchsde_on_the_same_brownian_path(sde: SDE):
    class Oracle(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return sde(y).drift

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return sde(y).diffusion

    steps, x0 = 64, torch.linspace(0.5, 2, 20, dtype=torch.float64).reshape(10, 2)
    ts = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    bm = torchsde.BrownianInterval(0.0, 1.0, size=(10, 2), dtype=torch.float64, entropy=7)
    theirs = torchsde.sdeint(Oracle(), x0, ts, bm=bm, method="euler", dt=1 / steps)
    dw = torch.stack([bm(ts[k], ts[k + 1]) for k in range(steps)])
    ours = euler_maruyama(sde, x0, dt=1 / steps, steps=steps, noise=dw * math.sqrt(steps))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_path_with_substeps_equals_the_finer_path_at_whole_steps():
    sde, x0 = GeometricBrownianMotion(), torch.ones(5, 2)
    noise = torch.randn(40, 5, 2, generator=make_rng())
    fine = euler_maruyama(sde, x0, dt=0.025, steps=40, noise=noise)
    coarse = euler_maruyama(sde, x0, dt=0.1, steps=10, substeps=4, noise=noise)
    torch.testing.assert_close(coarse, fine[::4])


def test_transition_density_is_the_gaussian_of_one_step():
    sde, x, dt = GeometricBrownianMotion(), torch.tensor([[1.0, 2.0]]), 0.1
    x_next = torch.tensor([[1.2, 1.9]])
    normal = torch.distributions.Normal(x + sde(x).drift * dt, sde(x).diffusion * math.sqrt(dt))
    log_prob = increment_log_prob(sde(x), x_next - x, dt)
    torch.testing.assert_close(log_prob, normal.log_prob(x_next).sum(-1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dt": -1}, "dt > 0"),
        ({"steps": 0}, "substeps >= 1"),
        ({"substeps": 2}, r"noise must be \(4, 2, 1\)"),
    ],
)
def test_invalid_steps_and_noise_raise(changes: dict[str, Any], message: str):
    settings = {"dt": 1.0, "steps": 2, "noise": torch.ones(2, 2, 1)}
    with pytest.raises(ConfigError, match=message):
        euler_maruyama(OrnsteinUhlenbeck(), torch.ones(2, 1), **{**settings, **changes})
