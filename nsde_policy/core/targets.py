"""Training targets: points near observed pairs of states and what the networks should output there."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Interpolation = Literal["none", "uniform"]
NoiseKind = Literal["relative", "absolute"]
HistoryNoise = Literal["independent", "shared"]


def stack_history(path: Tensor, history: int) -> Tensor:
    """Stack each state of a path (steps, ..., d) with those before it, newest first; (steps, ..., history·d).

    The first state is repeated before the beginning of the path.
    """
    padded = torch.cat([path[:1].expand(history - 1, *path.shape[1:]), path])
    return torch.cat([padded[history - 1 - lag : len(padded) - lag] for lag in range(history)], dim=-1)


@dataclass(frozen=True)
class TrainingPoint:
    """A noisy point between two observed states with their history, and the targets there.

    All are (batch, history·d).
    """

    noisy_x: Tensor
    """x̃_τ = x_τ + η, the point at which networks are evaluated."""
    velocity: Tensor
    """Δx/Δt, the target of the flow."""
    unit_noise: Tensor
    """η/σ, the noise that the denoiser should remove."""


def sample_training_point(
    x: Tensor,
    increment: Tensor,
    dt: Tensor,
    *,
    interpolation: Interpolation,
    noise_std: Tensor,
    unit_noise: Tensor,
    generator: torch.Generator,
) -> TrainingPoint:
    """Sample a noisy point between x and x + Δx (Appendix B); all (batch, history·d), `dt` (batch, 1).

    Args:
        x: Observed states.
        increment: Δx to the next observed state.
        dt: Time between the two.
        interpolation: "none" takes x itself, the point of Eq. 11; "uniform" takes x + τ Δx, τ ~ U[0, 1].
        noise_std: σ of the noise in each dimension, state units, (d,); see `noise_scale`.
        unit_noise: Standard normal numbers that it scales, (batch, d); see `sample_noise`.
        generator: Generator of τ.

    Deviation: the paper always interpolates. If the data are truly stochastic, x_τ already contains part of
    the increment and the regression is biased (Ornstein–Uhlenbeck with slope −1: regression finds 0), so
    "none" is the default. On smooth demonstrations the two agree.
    """
    point = x + noise_std * unit_noise
    if interpolation == "uniform":
        tau = torch.rand((len(x), 1), generator=generator, dtype=x.dtype, device=x.device)
        point = point + tau * increment
    return TrainingPoint(noisy_x=point, velocity=increment / dt, unit_noise=unit_noise)


def noise_scale(noise: float, unit: NoiseKind, increment_std: Tensor) -> Tensor:
    """Return σ of the noise in each dimension, state units, (d,).

    "absolute" is the paper's σ² I (Appendix B); "relative" takes `noise` times the spread of each dimension's
    increments.

    Deviation: one σ for all dimensions hides the slow ones and lowers scores sharply; hence "relative".
    """
    return noise * increment_std if unit == "relative" else torch.full_like(increment_std, noise)


def sample_noise(like: Tensor, *, history: int, older: HistoryNoise, generator: torch.Generator) -> Tensor:
    """Sample standard normal numbers for states (n, d) and their history, newest first, (n, history·d).

    The noise of older states is "independent" of the newest, so that the denoiser learns a score of the whole
    history; or "shared", the same for all, which preserves their differences (the denoiser then learns the
    slope along that common shift).
    """
    width = like.shape[1] * (history if older == "independent" else 1)
    noise = torch.randn((len(like), width), generator=generator, dtype=like.dtype, device=like.device)
    return noise.repeat(1, history) if older == "shared" else noise


def add_noise(states: Tensor, std: Tensor, generator: torch.Generator) -> Tensor:
    """Add normal noise of `std` (d,) to states (..., d), independently for each state of a window.

    Differences within a window then become unreliable. Otherwise a policy may copy its own last motion, which
    predicts the data well but makes the robot stop.
    """
    unit = torch.randn(states.shape, generator=generator, dtype=states.dtype, device=states.device)
    return states + std * unit
