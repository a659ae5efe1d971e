"""Time-invariant Itô SDEs with diagonal noise, dx = f(x) dt + g(x) ⊙ dw  (Eq. 9, 10).

Every tensor is (..., d): leading axes are batch, the last is the state.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from nsde_policy.errors import ConfigError


class Coefficients(NamedTuple):
    """The two coefficients at one point."""

    drift: Tensor
    """f(x), state units per unit of time, (..., d)."""
    diffusion: Tensor
    """g(x) ≥ 0, state units per square root of time, (..., d)."""


class Terms(NamedTuple):
    """The coefficients and the score at one point."""

    drift: Tensor
    """f(x), state units per unit of time, (..., d)."""
    diffusion: Tensor
    """g(x) ≥ 0, state units per square root of time, (..., d)."""
    score: Tensor
    """d(x) ≈ ∇ log p(x), per state unit, (..., d)."""


SDE = Callable[[Tensor], Coefficients]
"""An equation: a function that returns f(x) and g(x)."""


def euler_maruyama(
    sde: SDE, x0: Tensor, *, dt: float, steps: int, noise: Tensor, substeps: int = 1
) -> Tensor:
    """Sample one path per row of `x0` (Eq. 11).

    Args:
        sde: The equation.
        x0: Initial states, (..., d).
        dt: Time per step, > 0.
        steps: Number of steps.
        noise: Standard normal numbers, (steps · substeps, ..., d).
        substeps: Solver steps within each step; only whole steps are returned.

    Returns:
        Paths (steps + 1, ..., d), `x0` first.
    """
    if steps < 1 or substeps < 1 or not dt > 0:
        raise ConfigError(f"need steps and substeps >= 1 and dt > 0, got {steps}, {substeps} and {dt}")
    shape = (steps * substeps, *x0.shape)
    if noise.shape != shape:
        raise ConfigError(f"noise must be {shape}, one row per solver step, got {tuple(noise.shape)}")
    solver_step = x0.new_full((), dt) / substeps
    root = solver_step.sqrt()
    x, path = x0, [x0]
    for k in range(steps * substeps):
        x = euler_maruyama_step(x, sde(x), solver_step, noise[k] * root)
        if (k + 1) % substeps == 0:
            path.append(x)
    return torch.stack(path)


def euler_maruyama_step(x: Tensor, at: Coefficients, dt: Tensor, dw: Tensor) -> Tensor:
    """Return x + f Δt + g ⊙ Δw, one step of the solver (Eq. 11); dw has variance Δt."""
    return torch.addcmul(torch.addcmul(x, at.drift, dt), at.diffusion, dw)


def increment_log_prob(at: Coefficients, increment: Tensor, dt: float) -> Tensor:
    """Return log N(Δx; f Δt, g² Δt), summed over dimensions (Eq. 12 to 14); (...).

    Constants are kept, so that models can be compared.
    """
    variance = at.diffusion.square() * dt
    error = increment - at.drift * dt
    return -0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi)).sum(-1)
