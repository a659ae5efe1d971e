"""Paths of a Neural SDE for a control loop: those of `euler_maruyama`, bit for bit, in half the time.

For one row a path costs little arithmetic and much bookkeeping: modules that call modules, the same
constants computed at every step. Here a step is plain functions over tensors that are looked up once a path.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.core.networks import SharedTrunk
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.equation import LearnedSDE

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class FastPaths:
    """One solver step after the other, without modules. Networks of one plain trunk, constant strength."""

    learned: LearnedSDE
    networks: SharedTrunk
    config: NeuralSDEConfig
    sampling: SamplingConfig

    @classmethod
    def of(cls, learned: LearnedSDE, config: NeuralSDEConfig, sampling: SamplingConfig) -> Self | None:
        """None where the equation has a part that is not written out here."""
        networks = learned.networks
        plain = isinstance(networks, SharedTrunk) and not config.network.residual
        if not plain or learned.training or sampling.denoiser not in ("constant", "off"):
            return None
        assert isinstance(networks, SharedTrunk)
        return cls(learned, networks, config, sampling)

    @torch.inference_mode()
    def sample(self, x0: Tensor, noise: Tensor) -> Tensor:
        """One path per row of x0 (rows, history·d), noise (solver steps, rows, d); (steps + 1, rows, d)."""
        learned, sampling, d = self.learned, self.sampling, self.learned.layout.dim
        layout, period, std = learned.layout, learned.period, learned.layout.increment_std
        flow, spread = std / period, std / math.sqrt(period)
        pull = sampling.alpha * learned.noise_std.square() / self.config.dt
        dt = torch.full((), float(period), dtype=x0.dtype, device=x0.device) / sampling.substeps
        kicks = noise * dt.sqrt()
        turns = layout.is_circular.repeat(learned.history - 1)
        network = self._network(x0)
        x, path = x0, [x0[:, :d]]
        for k in range(len(noise)):
            drift, log_variance, score = network(x)
            drift = drift * flow
            if sampling.denoiser != "off":
                drift = drift + pull * (score / learned.noise_std)
            diffusion = sampling.diffusion * ((0.5 * log_variance).exp() * spread)
            now = torch.addcmul(torch.addcmul(x[:, :d], drift, dt), diffusion, kicks[k])
            if learned.history > 1:
                step = x[:, :-d] - x[:, d:]
                step = torch.where(turns, torch.remainder(step + math.pi, 2 * math.pi) - math.pi, step)
                x = torch.cat([now, torch.addcmul(x[:, d:], step / period, dt)], dim=-1)
            else:
                x = now
            if (k + 1) % sampling.substeps == 0:
                path.append(now)
        return torch.stack(path)

    def _network(self, like: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
        """What the networks say of states (rows, history·d): drift, log variance, score, in network units."""
        layout, trunk = self.learned.layout, self.networks.trunk
        low, width = layout.low, layout.high - layout.low
        linear_index, circular_index, any_angle = (
            layout.linear_index,
            layout.circular_index,
            layout.spec.circular,
        )
        shape = (len(like), self.learned.history, layout.dim)
        size, activation = (trunk.width,), _ACTIVATIONS[self.config.network.activation]
        norms = _weights(trunk.norms) if self.config.network.layer_norm else None
        layers = _weights(trunk.layers)
        networks = self.networks
        heads = _weights((networks.drift, networks.log_variance, networks.score))
        floor = math.log(self.learned.variance_floor)

        def network(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            blocks = x.reshape(shape)
            unit = (2 * (blocks - low) / width - 1).index_select(-1, linear_index)
            if any_angle:
                angle = blocks.index_select(-1, circular_index)
                unit = torch.cat([unit, angle.sin(), angle.cos()], dim=-1)
            h = unit.flatten(-2)
            for i, (weight, bias) in enumerate(layers):
                h = functional.linear(h, weight, bias)
                h = activation(h if norms is None else functional.layer_norm(h, size, *norms[i]))
            drift, log_variance, score = (functional.linear(h, weight, bias) for weight, bias in heads)
            return drift, floor + functional.softplus(log_variance - floor), score

        return network


def _weights(layers: Iterable[nn.Module]) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer."""
    return [cast(tuple[Tensor, Tensor], (layer.weight, layer.bias)) for layer in layers]
