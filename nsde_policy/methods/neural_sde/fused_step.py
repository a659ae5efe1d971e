"""The Euler–Maruyama step that runs: `select_action` samples with it, and the exported graph traces it.

`core/sde.py` is the readable version; tests compare both, bit for bit. For a single path the arithmetic is
cheap and modules that call modules are not, so here a step is plain functions of tensors that are looked up
once per path.

`FusedStep.fold` multiplies the constants of the step into the weights. An exported graph has half as many
operators for it; it rounds differently, so `select_action` does not use it.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.core.networks import SharedTrunk
from nsde_policy.core.state import StateLayout
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.methods.neural_sde.equation import LearnedSDE

_ACTIVATION_FUNCTIONS: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.GELU: functional.gelu,
    nn.ReLU: torch.relu,
    nn.SiLU: functional.silu,
    nn.Tanh: torch.tanh,
}


class Layer(NamedTuple):
    """Weight and bias of a linear layer or a LayerNorm."""

    weight: Tensor
    bias: Tensor

    def scale(self, factor: Tensor) -> "Layer":
        """Scale the outputs, in double precision so that folding rounds once."""
        return Layer(self.weight.double() * factor[:, None], self.bias.double() * factor)


class Weights(NamedTuple):
    """Weights of a shared trunk and its heads."""

    layers: list[Layer]
    norms: list[Layer] | None
    drift: Layer
    log_variance: Layer
    score: Layer

    @classmethod
    def look_up(cls, networks: SharedTrunk) -> Self:
        """Return the tensors of the networks."""

        def look_up(module: nn.Module) -> Layer:
            return Layer(cast(Tensor, module.weight), cast(Tensor, module.bias))

        trunk, heads = networks.trunk, (networks.drift, networks.log_variance, networks.score)
        has_norms = isinstance(trunk.norms[0], nn.LayerNorm)
        norms = [look_up(norm) for norm in trunk.norms] if has_norms else None
        return cls([look_up(layer) for layer in trunk.layers], norms, *map(look_up, heads))


class Units(NamedTuple):
    """Constants that convert between state units and network units."""

    low: Tensor
    width: Tensor
    """Range of the demonstrations."""
    flow: Tensor
    """Factor from f̂ to f."""
    denoiser_gain: Tensor | None
    """α of the denoiser; None without one."""
    noise_std: Tensor
    diffusion: float
    """The sampling's factor on g."""


@dataclass(frozen=True)
class FusedStep:
    """One solver step of a Neural SDE with a shared trunk and a constant denoiser strength."""

    layout: StateLayout
    history: int
    period: float
    substeps: int
    weights: Weights
    residual: bool
    activation: Callable[[Tensor], Tensor]
    variance_floor: float
    spread: Tensor
    """Factor that converts ĝ to g."""
    older_is_angle: Tensor
    """True for columns of older states that are angles, ((history − 1)·d,)."""
    units: Units | None
    """None once they are folded into the weights."""

    @classmethod
    def build(cls, learned: LearnedSDE, sampling: SamplingConfig) -> Self | None:
        """Look up the tensors of a step; None if the equation has a part that only `core/sde.py` covers."""
        networks, layout, std = learned.networks, learned.layout, learned.layout.increment_std
        if not isinstance(networks, SharedTrunk) or learned.training:
            return None
        if sampling.denoiser not in ("constant", "off"):
            return None
        gain = sampling.alpha * learned.noise_std.square() / learned.period
        return cls(
            layout=layout,
            history=learned.history,
            period=learned.period,
            substeps=sampling.substeps,
            weights=Weights.look_up(networks),
            residual=networks.trunk.residual,
            activation=_ACTIVATION_FUNCTIONS[type(networks.trunk.activation)],
            variance_floor=learned.variance_floor,
            spread=std / math.sqrt(learned.period),
            older_is_angle=layout.is_circular.repeat(learned.history - 1),
            units=Units(
                low=layout.low,
                width=layout.high - layout.low,
                flow=std / learned.period,
                denoiser_gain=None if sampling.denoiser == "off" else gain,
                noise_std=learned.noise_std,
                diffusion=sampling.diffusion,
            ),
        )

    @torch.inference_mode()
    def sample(self, x0: Tensor, noise: Tensor) -> Tensor:
        """Sample one path per row of x0, (steps + 1, rows, d).

        Args:
            x0: States with history, (rows, history·d), newest first.
            noise: Standard normal numbers, (solver steps, rows, d).
        """
        return torch.stack([x0[:, : self.layout.dim], *(x for x, _ in self.walk(x0, noise))])

    def walk(self, x0: Tensor, noise: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for every control period, the state at its end and g at its start, both (rows, d)."""
        dt = torch.full((), self.period, dtype=x0.dtype, device=x0.device) / self.substeps
        noise_steps = torch.split((noise * dt.sqrt()).flatten(0, 1), len(x0))
        x, now = x0, x0[:, : self.layout.dim]
        for k, noise_step in enumerate(noise_steps):
            drift, diffusion = self._coefficients(x)
            if k % self.substeps == 0:
                first = diffusion
            now = torch.addcmul(torch.addcmul(now, drift, dt), diffusion, noise_step)
            x = self._shift(x, now, dt)
            if (k + 1) % self.substeps == 0:
                yield now, first

    def fold(self) -> "FusedStep":
        """Return the same step with all constants in the weights, and a solver step as the unit of time.

        The first layer takes all columns of a state unscaled, then sines and cosines of its angles. With
        history, there must be one solver step per control period, so that an older state is the state before.
        """
        assert self.units is not None
        assert self.history == 1 or self.substeps == 1
        units, dt, layout, weights = self.units, self.period / self.substeps, self.layout, self.weights
        index, n = layout.linear_index, len(layout.linear_index)
        first = weights.layers[0].weight.double().reshape(-1, self.history, layout.feature_dim)
        low, gain = units.low.double()[index], 2 / units.width.double()[index]
        bias = weights.layers[0].bias.double() - (first[..., :n] @ (low * gain + 1)).sum(-1)
        columns = first.new_zeros(*first.shape[:-1], layout.dim)
        columns[..., index] = first[..., :n] * gain
        first = torch.cat([columns, first[..., n:]], dim=-1).flatten(1)
        drift = weights.drift.scale(units.flow.double() * dt)
        if units.denoiser_gain is not None:
            denoiser = weights.score.scale(units.denoiser_gain.double() / units.noise_std * dt)
            drift = Layer(drift.weight + denoiser.weight, drift.bias + denoiser.bias)
        return replace(
            self,
            period=float(self.substeps),
            weights=weights._replace(
                layers=[Layer(first.float(), bias.float()), *weights.layers[1:]],
                drift=Layer(drift.weight.float(), drift.bias.float()),
            ),
            spread=(self.spread.double() * (units.diffusion * math.sqrt(dt))).float(),
            units=None,
        )

    def _coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return f + αd and g of the newest state, (rows, d)."""
        h, weights, units = self._trunk(self._features(x)), self.weights, self.units
        drift = functional.linear(h, *weights.drift)
        log_variance = functional.linear(h, *weights.log_variance)
        if units is None:  # sqrt(v₀ + e^l) = exp(½ (log v₀ + softplus(l − log v₀))), the formula below
            return drift, (self.variance_floor + log_variance.exp()).sqrt() * self.spread
        drift = drift * units.flow
        if units.denoiser_gain is not None:
            drift = drift + units.denoiser_gain * (functional.linear(h, *weights.score) / units.noise_std)
        floor = math.log(self.variance_floor)
        log_variance = floor + functional.softplus(log_variance - floor)
        return drift, units.diffusion * ((0.5 * log_variance).exp() * self.spread)

    def _features(self, x: Tensor) -> Tensor:
        layout, units = self.layout, self.units
        features = blocks = x.reshape(-1, self.history, layout.dim)
        if units is not None:
            features = (2 * (blocks - units.low) / units.width - 1).index_select(-1, layout.linear_index)
        if layout.spec.circular:
            angle = blocks.index_select(-1, layout.circular_index)
            features = torch.cat([features, angle.sin(), angle.cos()], dim=-1)
        return features.flatten(-2)

    def _trunk(self, h: Tensor) -> Tensor:
        for i, layer in enumerate(self.weights.layers):
            if self.residual and i > 0:
                h = h + self.activation(functional.linear(self._normalize(h, i), *layer))
            else:
                h = self.activation(self._normalize(functional.linear(h, *layer), i))
        return h

    def _normalize(self, h: Tensor, i: int) -> Tensor:
        norms = self.weights.norms
        return h if norms is None else functional.layer_norm(h, norms[i].bias.shape, *norms[i])

    def _shift(self, x: Tensor, now: Tensor, dt: Tensor) -> Tensor:
        """Put the new state first; older states move towards their newer neighbours."""
        if self.history == 1:
            return now
        newer, older = x[:, : -self.layout.dim], x[:, self.layout.dim :]
        if self.units is None:  # at one solver step per period they arrive there
            return torch.cat([now, newer], dim=-1)
        step = newer - older
        step = torch.where(self.older_is_angle, torch.remainder(step + math.pi, 2 * math.pi) - math.pi, step)
        return torch.cat([now, torch.addcmul(older, step / self.period, dt)], dim=-1)


class FoldedPlan(nn.Module):
    """A folded step, taken once per row of noise, as a module that can be exported."""

    def __init__(self, step: FusedStep, networks: SharedTrunk) -> None:
        super().__init__()
        self.step = step.fold()
        self.networks = copy.deepcopy(networks)  # weights of modules are exported once, other tensors per use
        self.networks.trunk.layers[0] = _build_linear(self.step.weights.layers[0])
        self.networks.drift = _build_linear(self.step.weights.drift)

    @torch.no_grad()
    def forward(self, states: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sample one path.

        Args:
            states: (history, d), newest first.
            noise: (solver steps, d).

        Returns:
            Actions (steps, act_dim), the path (steps + 1, d), and σ of each action (steps, act_dim).
        """
        step = replace(self.step, weights=Weights.look_up(self.networks))
        periods = list(step.walk(states.reshape(1, -1), noise[:, None]))
        path = torch.cat([states[:1], *(x for x, _ in periods)])
        std = torch.cat([diffusion for _, diffusion in periods]) * math.sqrt(step.substeps)
        obs_dim = step.layout.spec.obs_dim
        return path[1:, obs_dim:], path, std[:, obs_dim:]


def _build_linear(layer: Layer) -> nn.Linear:
    module = nn.Linear(layer.weight.shape[1], layer.weight.shape[0], device="meta")
    module.weight, module.bias = nn.Parameter(layer.weight), nn.Parameter(layer.bias)
    return module
