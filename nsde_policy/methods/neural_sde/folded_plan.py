"""The plan of an exported graph: every constant of a solver step is multiplied into the weights.

A folded step has half as many operators as the step of `model.py`. It rounds differently, so only exported
graphs use it; tests compare both.
"""

import copy
import math
from typing import cast

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import MLP, Networks
from nsde_policy.core.state import StateLayout

from .config import NeuralSDEConfig, SamplingConfig


class FoldedPlan(nn.Module):
    """Folded steps of an equation with a shared trunk, one per step of the noise.

    A solver step is the unit of time. With history, there must be one solver step per policy period, so that
    an older state becomes the state before.
    """

    spread: Tensor
    """Factor from √(v₀ + exp(network output)) to g of a solver step, (d,)."""

    def __init__(
        self,
        config: NeuralSDEConfig,
        layout: StateLayout,
        networks: Networks,
        *,
        noise_std: Tensor,
        sampling: SamplingConfig,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.substeps = sampling.substeps
        self.variance_floor = config.variance_floor
        std = self.layout.increment_std.double()
        self.register_buffer("spread", (std / math.sqrt(sampling.substeps)).float())
        self.diffusion = sampling.diffusion
        self.trunk = copy.deepcopy(cast(MLP, networks.trunk))
        first = cast(nn.Linear, self.trunk.layers[0])
        self.trunk.layers[0] = _fold_inputs(first, layout, config.history)
        self.log_variance = networks.log_variance
        drift = cast(nn.Linear, networks.drift)
        flow = std / sampling.substeps
        weight = drift.weight.double() * flow[:, None]
        bias = drift.bias.double() * flow
        if sampling.alpha:
            score = cast(nn.Linear, networks.score)
            correction = sampling.alpha * noise_std.double() / sampling.substeps
            weight = weight + score.weight.double() * correction[:, None]
            bias = bias + score.bias.double() * correction
        self.drift = _build_linear(weight, bias)

    @torch.no_grad()
    def forward(self, states: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sample one path per row from states (rows, history, d) and noise (rows, solver steps, d).

        Return actions (rows, steps, act_dim), paths (rows, steps + 1, d) and σ of each action.
        """
        obs_dim = self.layout.spec.obs_dim
        blocks = torch.split(states.flatten(1), self.layout.dim, dim=-1)
        features = [self._features(x) for x in blocks]
        now = blocks[0]
        path, std = [now], []
        for k, unit_noise in enumerate(torch.split(noise.flatten(1), self.layout.dim, dim=-1)):
            h = self.trunk(torch.cat(features, dim=-1))
            # √(v₀ + e^l) equals exp(½ (log v₀ + softplus(l − log v₀))), the formula of `LearnedSDE.outputs`
            sigma = (self.variance_floor + self.log_variance(h).exp()).sqrt() * self.spread
            now = now + self.drift(h) + self.diffusion * sigma * unit_noise
            features = [self._features(now), *features[:-1]]
            if k % self.substeps == 0:
                std.append(sigma)
            if (k + 1) % self.substeps == 0:
                path.append(now)
        whole, spread = (
            torch.cat(steps, dim=-1).reshape(len(now), -1, self.layout.dim) for steps in (path, std)
        )
        return whole[:, 1:, obs_dim:], whole, spread[..., obs_dim:] * math.sqrt(self.substeps)

    def _features(self, x: Tensor) -> Tensor:
        """Return all columns of states (rows, d) unscaled, then sines and cosines of their angles."""
        if not self.layout.spec.circular:
            return x
        angle = x.index_select(-1, self.layout.circular_index)
        return torch.cat([x, angle.sin(), angle.cos()], dim=-1)


def _fold_inputs(layer: nn.Linear, layout: StateLayout, history: int) -> nn.Linear:
    """Return the first layer with the scaling of its inputs to [-1, 1] multiplied into its weights."""
    index, n = layout.linear_index, len(layout.linear_index)
    weight = layer.weight.double().reshape(-1, history, layout.feature_dim)
    low = layout.low.double()[index]
    gain = 2 / (layout.high.double() - layout.low.double())[index]
    bias = layer.bias.double() - (weight[..., :n] @ (low * gain + 1)).sum(-1)
    columns = weight.new_zeros(*weight.shape[:-1], layout.dim)
    columns[..., index] = weight[..., :n] * gain
    return _build_linear(torch.cat([columns, weight[..., n:]], dim=-1).flatten(1), bias)


def _build_linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    module.weight = nn.Parameter(weight.detach().float())
    module.bias = nn.Parameter(bias.detach().float())
    return module
