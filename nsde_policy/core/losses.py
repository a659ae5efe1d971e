"""The paper's objectives as functions of tensors; no network, no randomness.

Shapes: coefficients and targets are (batch, d); `dt` and `weight`, how much each number counts, broadcast
against them. Every loss is summed over dimensions and averaged over the batch, in whatever units its inputs
share.
"""

import math

import torch
from torch import Tensor

SMALLEST_SQUARE = 1e-30
"""Smallest squared residual under the logarithm of Eq. 19, which is singular at 0."""


def flow_loss(drift: Tensor, velocity: Tensor, *, delta: float, weight: Tensor | float = 1.0) -> Tensor:
    """Return ½ (1 + δ) Σᵢ log(1 + (fᵢ − Δxᵢ/Δt)² / δ): Eq. 24, rescaled to have both its limits.

    δ = 0 is Eq. 19 itself, ½ Σᵢ log r²; δ = ∞ is the square loss ½ Σᵢ r².

    Deviation: Eq. 24 prints ½ Σᵢ log(r² + δ), whose gradient r / (r² + δ) vanishes as δ grows, so that its
    square-loss limit is flat. Subtracting the constant log δ, as Eq. 32 does, and multiplying with (1 + δ)
    moves no minimiser, and the gradient becomes (1 + δ) r / (r² + δ): 1/r at δ → 0⁺ and r at δ → ∞.

    Deviation: the paper reads this loss as the likelihood with σ² = r² Δt put back. One σ per sample is not a
    model; the loss is, up to a constant, a Cauchy likelihood per dimension with scale √δ.
    """
    square = (drift - velocity).square()
    if delta == 0:
        return 0.5 * (weight * square.clamp_min(SMALLEST_SQUARE).log()).sum(-1).mean()
    if math.isinf(delta):
        return 0.5 * (weight * square).sum(-1).mean()
    return 0.5 * (1 + delta) * (weight * torch.log1p(square / delta)).sum(-1).mean()


def diffusion_squared_loss(
    variance: Tensor, drift: Tensor, velocity: Tensor, dt: Tensor | float, weight: Tensor | float = 1.0
) -> Tensor:
    """Return ½ Σᵢ (σᵢ² − (fᵢ − Δxᵢ/Δt)² Δt)²: Eq. 20, with the flow detached."""
    error = (drift.detach() - velocity).square() * dt
    return 0.5 * (weight * (variance - error).square()).sum(-1).mean()


def diffusion_nll(
    log_variance: Tensor, drift: Tensor, velocity: Tensor, dt: Tensor | float, weight: Tensor | float = 1.0
) -> Tensor:
    """Return ½ Σᵢ (fᵢ − Δxᵢ/Δt)² Δt / σᵢ² + log σᵢ² (Eq. 16), with the flow detached.

    No gradient reaches f through its residual. Layers that f and g share are trained by both losses.
    `log_variance` is log σ², the logarithm of the squared diffusion coefficient.

    Deviation: replaces Eq. 20. Both have the optimum σ² = E[r² | x] Δt (Eq. 18, averaged), but Eq. 20 weighs
    errors by σ⁴ and so sees only the noisiest places, and it cannot use a logarithm's range.
    """
    error = (drift.detach() - velocity).square() * dt
    return 0.5 * (weight * (error * (-log_variance).exp() + log_variance)).sum(-1).mean()


def denoiser_loss(scaled_score: Tensor, unit_noise: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Return ‖σ d(x + ε) + ε/σ‖²: denoising score matching (Eq. 23), of σ d and ε/σ.

    Deviation: Eq. 23 prints d − ε/σ², whose optimum points *away* from the data; the text wants a score,
    "pointing back toward the unperturbed sample", and that is −ε/σ².

    Deviation: each dimension is weighted with its own σ², which leaves the optimum alone and lets noise of
    different size per dimension count alike.
    """
    return (weight * (scaled_score + unit_noise).square()).sum(-1).mean()
