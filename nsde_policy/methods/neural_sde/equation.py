"""The learned SDE: its networks work in their own units, its coefficients are in state units.

Units. Networks work with increments divided by their standard deviation s over one policy period Δt₀:
f̂ = f Δt₀/s, log ĝ² = log(g² Δt₀/s²), d̂ = σ d with σ of the noise.

History. As in the paper's video experiment the state is X = (x_t, x_{t−Δt}, …), and only the first block is
learned; the others follow their neighbour, dh = (x − h)/Δt₀ dt. One solver step per policy period then
shifts the history exactly, and several lag it by the same time.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import MLP, Networks, Outputs
from nsde_policy.core.sde import Terms
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import noise_scale
from nsde_policy.errors import ConfigError

from .config import NeuralSDEConfig


class LearnedSDE(nn.Module):
    """Learned f, g and d of states with history, (..., history·d), newest first."""

    noise_std: Tensor

    def __init__(self, config: NeuralSDEConfig, spec: StateSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.period = config.dt
        self.history = config.history
        self.variance_floor = config.variance_floor
        self.layout = StateLayout(spec)
        noise_std = noise_scale(config.noise, config.noise_kind, self.layout.increment_std)
        self.register_buffer("noise_std", noise_std * _expand_factors(config, spec))
        inputs = config.history * self.layout.feature_dim
        self.networks = Networks(inputs, self.layout.dim, config.network, generator=generator)
        if config.step_inputs:
            self._add_step_inputs(config.step_inputs, generator)

    @torch.no_grad()
    def _add_step_inputs(self, strength: float, generator: torch.Generator) -> None:
        """Add random weights of the steps between successive states, scaled to 1, to the first layers.

        Steps are differences of inputs, so this changes initial weights only, not the network: inputs are
        scaled to the range of a state, and without it training takes long to find that small differences
        matter.
        """
        linear, size = self.layout.linear_index, self.layout.feature_dim
        scale = ((self.layout.high - self.layout.low) / (2 * self.layout.increment_std))[linear]
        for trunk in self.networks.modules():
            if isinstance(trunk, MLP):
                weight = cast(Tensor, trunk.layers[0].weight)
                for lag in range(self.history - 1):
                    step_weight = torch.empty(len(weight), len(linear)).uniform_(-1, 1, generator=generator)
                    step_weight *= strength * scale / math.sqrt(len(linear))
                    weight[:, lag * size : lag * size + len(linear)] += step_weight
                    weight[:, (lag + 1) * size : (lag + 1) * size + len(linear)] -= step_weight

    def features(self, x: Tensor) -> Tensor:
        """Return the inputs of the networks, (..., history·features).

        Older states are inputs as states, not as steps between them: scaled to their spread, steps would
        dominate the input, and a policy that relies on its last step copies it.
        """
        return self.layout.features(self._blocks(x)).flatten(-2)

    def outputs(self, features: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """Evaluate the networks for the current state, in network units, the variance above its floor."""
        out: Outputs = self.networks(features, generator)
        floor = math.log(self.variance_floor)
        return out._replace(log_variance=floor + nn.functional.softplus(out.log_variance - floor))

    def increment(self, x: Tensor, x_next: Tensor) -> Tensor:
        """Return x_next − x for states with history, on the circle for angles."""
        return self.layout.increment(self._blocks(x), self._blocks(x_next)).flatten(-2)

    def terms(self, x: Tensor) -> Terms:
        """Return drift, diffusion and score of a state with its history, (..., history·d).

        Older states follow their neighbour: their drift is the difference, their diffusion and score are 0.
        """
        out = self.outputs(self.features(x))
        std = self.layout.increment_std
        drift = out.drift * (std / self.period)
        diffusion = (0.5 * out.log_variance).exp() * (std / math.sqrt(self.period))
        score = out.score / self.noise_std
        if self.history == 1:
            return Terms(drift, diffusion, score)
        blocks = self._blocks(x)
        follow = self.layout.increment(blocks[..., 1:, :], blocks[..., :-1, :]).flatten(-2) / self.period
        still = torch.zeros_like(follow)
        return Terms(
            torch.cat([drift, follow], dim=-1),
            torch.cat([diffusion, still], dim=-1),
            torch.cat([score, still], dim=-1),
        )

    def _blocks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.history, self.layout.dim)


def _expand_factors(config: NeuralSDEConfig, spec: StateSpec) -> Tensor:
    """Return a factor on the noise of each dimension of a state; 1 for image features."""
    factors = config.noise_factors
    if len(factors) > spec.plain_dim:
        raise ConfigError(
            f"model.noise_factors has {len(factors)} numbers for {spec.plain_dim} observation columns"
        )
    ones = [1.0] * (spec.obs_dim - len(factors))
    return torch.tensor([*factors, *ones, *[config.action_noise] * spec.act_dim])
