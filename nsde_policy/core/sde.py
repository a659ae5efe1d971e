"""Time-invariant Itô SDEs with diagonal noise, dx = f(x) dt + g(x) ⊙ dw  (Eq. 9, 10).

Every tensor is (..., d): leading axes are batch, the last is the state. The solver draws the noise
from the generator it is given.
"""

import abc
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

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


class AbstractSDE(nn.Module, abc.ABC):
    """The two coefficients of an SDE, drift and diffusion."""

    @abc.abstractmethod
    def coefficients(self, x: Tensor) -> Coefficients:
        """Return f(x) and g(x)."""


class AbstractScoredSDE(AbstractSDE):
    """An SDE that also has the score of the data density."""

    @abc.abstractmethod
    def terms(self, x: Tensor) -> Terms:
        """Return f(x), g(x) and the score d(x)."""

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return f(x) and g(x)."""
        return Coefficients(*self.terms(x)[:2])


Strength = Callable[[Tensor, Tensor], Tensor]
"""α: (x, g(x)) ↦ strength of the score, state units² per unit of time, broadcast to (..., d).

A module with `forward(x, g)` can be used as well, so α may be learned (remark below Eq. 23).
"""


def constant_strength(alpha: float | Tensor) -> Strength:
    """Return a constant α (Eq. 22), one number or one per dimension."""

    def strength(x: Tensor, diffusion: Tensor) -> Tensor:
        return alpha.to(x) if isinstance(alpha, Tensor) else x.new_full((), alpha)

    return strength


def cancelling_strength(factor: float = 1.0) -> Strength:
    """Return α = factor · ½ g gᵀ, which at 1 cancels the spreading by the diffusion (Eq. 33 and below).

    The cancellation is exact if g is constant. Otherwise ½ ∂(g²)/∂x of the Fokker–Planck flux remains,
    whatever the score (`tests/core/test_sde.py` measures both).
    """

    def strength(x: Tensor, diffusion: Tensor) -> Tensor:
        return 0.5 * factor * diffusion.square()

    return strength


class ScoreCorrectedSDE(AbstractSDE):
    """dx = (f(x) + α(x) d(x)) dt + g(x) ⊙ dw: the denoiser keeps paths near the data (Eq. 22, 33)."""

    def __init__(self, sde: AbstractScoredSDE, strength: Strength) -> None:
        super().__init__()
        self.sde = sde
        self.strength = strength

    def coefficients(self, x: Tensor) -> Coefficients:
        """Return f(x) + α(x) d(x) and g(x)."""
        drift, diffusion, score = self.sde.terms(x)
        return Coefficients(drift + self.strength(x, diffusion) * score, diffusion)


class ScaledDiffusionSDE(AbstractScoredSDE):
    """The same SDE with diffusion factor · g; factor 0 gives an ordinary differential equation."""

    def __init__(self, sde: AbstractScoredSDE, factor: float) -> None:
        super().__init__()
        self.sde = sde
        self.factor = factor

    def terms(self, x: Tensor) -> Terms:
        """Return f(x), factor · g(x) and d(x)."""
        drift, diffusion, score = self.sde.terms(x)
        return Terms(drift, self.factor * diffusion, score)


def euler_maruyama(
    sde: AbstractSDE,
    x0: Tensor,
    *,
    dt: float | Tensor,
    steps: int,
    substeps: int = 1,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    """Sample one path per row of `x0` (Eq. 11).

    Args:
        sde: The equation.
        x0: Initial states, (..., d).
        dt: Time per step, > 0; or a tensor (steps,) for irregular sampling, whose sign is not checked because
            that would synchronise with the device.
        steps: Number of steps.
        substeps: Solver steps within each step; only whole steps are returned.
        generator: Generator of the noise, on the device of `x0`.
        noise: Standard normal numbers to use instead, (steps · substeps, ..., d).

    Returns:
        Paths (steps + 1, ..., d), `x0` first.
    """
    if steps < 1 or substeps < 1:
        raise ConfigError(f"steps and substeps must be at least 1, got {steps} and {substeps}")
    fine = step_sizes(dt, steps, x0).repeat_interleave(substeps) / substeps
    roots = fine.sqrt()
    shape = (steps * substeps, *x0.shape)
    if noise is None:
        if generator is None:
            raise ConfigError("sampling a path needs a generator or the noise itself")
        noise = torch.randn(shape, generator=generator, dtype=x0.dtype, device=x0.device)
    elif noise.shape != shape:
        raise ConfigError(f"noise must be {shape}, one row per solver step, got {tuple(noise.shape)}")
    x, path = x0, [x0]
    for k in range(steps * substeps):
        x = euler_maruyama_step(x, sde.coefficients(x), fine[k], noise[k] * roots[k])
        if (k + 1) % substeps == 0:
            path.append(x)
    return torch.stack(path)


def euler_maruyama_step(x: Tensor, at: Coefficients, dt: Tensor, dw: Tensor) -> Tensor:
    """Return x + f Δt + g ⊙ Δw, one step of the solver (Eq. 11); dw has variance Δt."""
    return torch.addcmul(torch.addcmul(x, at.drift, dt), at.diffusion, dw)


def step_sizes(dt: float | Tensor, steps: int, like: Tensor) -> Tensor:
    """Return Δt of every step, (steps,), in the dtype and on the device of `like`."""
    if isinstance(dt, Tensor):
        if dt.shape != (steps,):
            raise ConfigError(
                f"a tensor dt holds one number per step: expected ({steps},), got {tuple(dt.shape)}"
            )
        return dt.to(like)
    if not dt > 0:
        raise ConfigError(f"dt must be positive, got {dt}")
    return torch.full((steps,), float(dt), dtype=like.dtype, device=like.device)


def increment_log_prob(coefficients: Coefficients, increment: Tensor, dt: Tensor) -> Tensor:
    """Return log N(Δx; f Δt, g² Δt), summed over dimensions (Eq. 12 to 14); (...).

    `dt` broadcasts against (..., d). Constants are kept, so that models can be compared.
    """
    variance = coefficients.diffusion.square() * dt
    error = increment - coefficients.drift * dt
    return -0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi)).sum(-1)
