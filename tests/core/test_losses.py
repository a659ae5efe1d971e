"""Tests for nsde_policy/core/losses.py: properties of the objectives that the paper states."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nsde_policy.core.losses import (
    denoiser_loss,
    diffusion_nll,
    diffusion_squared_loss,
    flow_loss,
)
from nsde_policy.core.sde import Coefficients, increment_log_prob


def draw_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def compute_gradient(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss, at)[0]


@given(scales=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3))
@settings(max_examples=30, deadline=None)
def test_rescaling_a_coordinate_only_shifts_the_flow_loss(scales: list[float]):
    """Appendix A, Eq. 21: scaling flow and rate by c adds Σ log c for any flow and rate."""
    c = torch.tensor(scales, dtype=torch.float64)
    for seed in (0, 1):
        f, v = draw_normal(8, 3, seed=seed), draw_normal(8, 3, seed=seed + 10)
        shift = flow_loss(c * f, c * v, delta=0) - flow_loss(f, v, delta=0)
        assert shift.item() == pytest.approx(c.log().sum().item(), abs=1e-9)


def test_flow_loss_approaches_the_log_loss_and_the_square_loss_of_the_paper():
    f, v = draw_normal(16, 2).requires_grad_(), draw_normal(16, 2, seed=1)
    log, square = flow_loss(f, v, delta=0), flow_loss(f, v, delta=math.inf)
    torch.testing.assert_close(log, 0.5 * (f - v).square().log().sum(-1).mean())
    torch.testing.assert_close(square, 0.5 * (f - v).square().sum(-1).mean())
    near_log, near_square = flow_loss(f, v, delta=1e-12), flow_loss(f, v, delta=1e9)
    torch.testing.assert_close(compute_gradient(near_log, f), compute_gradient(log, f), rtol=1e-3, atol=0)
    torch.testing.assert_close(near_square, square, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        compute_gradient(near_square, f), compute_gradient(square, f), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 1.0, 100.0])
def test_gradient_of_flow_loss_is_that_of_eq_24_times_one_plus_delta(delta: float):
    """Eq. 24 in the code's scaling: gradients differ by the factor 1 + δ alone."""
    f, v = draw_normal(16, 2).requires_grad_(), draw_normal(16, 2, seed=1)
    printed = 0.5 * ((f - v).square() + delta).log().sum(-1).mean()
    ours = flow_loss(f, v, delta=delta)
    torch.testing.assert_close(compute_gradient(ours, f), (1 + delta) * compute_gradient(printed, f))


@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-3, 1.0, 1e6, math.inf])
def test_flow_loss_is_finite_in_single_precision_for_every_delta(delta: float):
    f = torch.tensor([[0.0], [1e-6], [1.0], [1e4]], requires_grad=True)
    loss = flow_loss(f, torch.zeros(4, 1), delta=delta)
    assert loss.isfinite()
    assert compute_gradient(loss, f).isfinite().all()


def test_diffusion_nll_is_the_negative_log_transition_density_up_to_constants():
    """Follows from Eq. 12 to 16."""
    f, log_variance, dx, dt = draw_normal(5, 3), draw_normal(5, 3, seed=1), draw_normal(5, 3, seed=2), 0.3
    density = increment_log_prob(Coefficients(f, (0.5 * log_variance).exp()), dx, dt)
    constants = 1.5 * math.log(2 * math.pi * dt)
    torch.testing.assert_close(
        diffusion_nll(log_variance, f, dx / dt, dt), -density.mean() - constants, rtol=1e-9, atol=1e-9
    )


def test_both_diffusion_losses_have_the_mean_squared_residual_as_their_optimum():
    """Eq. 18 and 20, one variance for many residuals: σ² = mean r² Δt."""
    f, v, dt = draw_normal(500, 1), draw_normal(500, 1, seed=1), 0.4
    best = ((f - v).square() * dt).mean().requires_grad_()
    variance = best.expand(500, 1)
    for loss in (diffusion_nll(variance.log(), f, v, dt), diffusion_squared_loss(variance, f, v, dt)):
        assert compute_gradient(loss, best).abs() < 1e-9


def test_diffusion_nll_at_the_optimal_g_is_the_flow_loss_up_to_a_constant():
    """Eq. 19 is Eq. 16 at Eq. 18, up to constants."""
    f, v, dt = draw_normal(6, 2), draw_normal(6, 2, seed=1), 0.4
    profile = diffusion_nll(((f - v).square() * dt).log(), f, v, dt)
    assert (profile - flow_loss(f, v, delta=0)).item() == pytest.approx(1 + math.log(dt))


def test_decoupled_diffusion_losses_have_no_gradient_in_the_flow():
    f = draw_normal(4, 2).requires_grad_()
    variance, v = torch.ones(4, 2).double().requires_grad_(), draw_normal(4, 2, seed=1)
    for loss in (diffusion_nll(variance, f, v, 1.0), diffusion_squared_loss(variance, f, v, 1.0)):
        assert torch.autograd.grad(loss, f, allow_unused=True, retain_graph=True)[0] is None


def test_optimal_denoiser_is_the_score_of_the_noisy_data():
    """Data N(0, s²), noise σ: the score is −x̃/(s² + σ²), towards the data; Eq. 23 has the opposite sign."""
    s, sigma, n = 2.0, 0.7, 200_000
    z = draw_normal(n, 1)
    noisy = s * draw_normal(n, 1, seed=1) + sigma * z
    slope = torch.zeros((), dtype=torch.float64, requires_grad=True)
    # The loss is quadratic in the slope of d(x̃) = slope · x̃, so one Newton step reaches its optimum.
    (first,) = torch.autograd.grad(denoiser_loss(sigma * slope * noisy, z), slope, create_graph=True)
    second = torch.autograd.functional.hessian(lambda a: denoiser_loss(sigma * a * noisy, z), slope)
    best = (-first / second).item()
    assert best == pytest.approx(-1 / (s**2 + sigma**2), rel=0.03)
