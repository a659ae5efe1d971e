"""The learned equation: networks in their own units inside, an SDE in state units outside.

Units. Networks work with increments divided by their standard deviation s over one control period Δt₀:
f̂ = f Δt₀/s, log ĝ² = log(g² Δt₀/s²), d̂ = σ d with σ the blur.

History. As in the paper's video experiment the state is X = (x_t, x_{t−Δt}, …), and only the first block is
learned; the others follow their neighbour, dh = (x − h)/Δt₀ dt. One solver step per control period then
shifts the history exactly, and several lag it by the same time.
"""

import math

import torch
from torch import Tensor, nn

from nsde_policy.config import NetworkConfig
from nsde_policy.core.networks import MLP, AbstractNetworks, Outputs, SeparateNetworks, SharedTrunk
from nsde_policy.core.sde import AbstractScoredSDE, Coefficients, Terms
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import noise_scale
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig


class LearnedSDE(AbstractScoredSDE):
    """Learned f, g and d of states with history, (..., history·d), newest first."""

    noise_std: Tensor

    def __init__(self, config: NeuralSDEConfig, layout: StateSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.period, self.history, self.variance_floor = config.dt, config.history, config.variance_floor
        self.layout = StateLayout(layout)
        noise_std = noise_scale(config.noise, config.noise_kind, self.layout.increment_std)
        self.register_buffer("noise_std", noise_std)
        self.networks = _networks(config, self.layout, generator)

    def features(self, x: Tensor) -> Tensor:
        """What the networks see, (..., history·features).

        Older states are shown as states, not as the steps between them: scaled to their spread, steps would
        be the loudest input, and a policy that listens to what it just did copies itself.
        """
        return self.layout.features(self._blocks(x)).flatten(-2)

    def outputs(self, features: Tensor, generator: torch.Generator | None = None) -> Outputs:
        """What the networks say of the current state, in network units, the variance kept above its floor."""
        out: Outputs = self.networks(features, generator)
        floor = math.log(self.variance_floor)
        return out._replace(log_variance=floor + nn.functional.softplus(out.log_variance - floor))

    def increment(self, x: Tensor, x_next: Tensor) -> Tensor:
        """x_next − x for states with history, on the circle where circular."""
        return self.layout.increment(self._blocks(x), self._blocks(x_next)).flatten(-2)

    def drift(self, x: Tensor) -> Tensor:
        """S f̂ / Δt₀ for the current state; older states follow their neighbour."""
        return self.terms(x).drift

    def diffusion(self, x: Tensor) -> Tensor:
        """S ĝ / √Δt₀ for the current state; older states have none."""
        return self.terms(x).diffusion

    def score(self, x: Tensor) -> Tensor:
        """d̂ / σ for the current state; older states are left alone."""
        return self.terms(x).score

    def coefficients(self, x: Tensor) -> Coefficients:
        """Drift and diffusion from one network call."""
        return Coefficients(*self.terms(x)[:2])

    def terms(self, x: Tensor) -> Terms:
        """All three from one network call."""
        scale, d = self.layout.increment_std, self.layout.dim
        out = self.outputs(self.features(x))
        drift = out.drift * (scale / self.period)
        diffusion = (0.5 * out.log_variance).exp() * (scale / math.sqrt(self.period))
        score = out.score / self.noise_std
        if self.history == 1:
            return Terms(drift, diffusion, score)
        newer = torch.cat([x[..., :d], x[..., :-d]], dim=-1)
        follow = self.increment(x, newer)[..., d:] / self.period
        still = torch.zeros_like(follow)
        return Terms(*(torch.cat(pair, -1) for pair in ((drift, follow), (diffusion, still), (score, still))))

    def _blocks(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.history, self.layout.dim)


def mlp_of(config: NetworkConfig, inputs: int, outputs: int | None, generator: torch.Generator) -> MLP:
    """A network of the configured shape."""
    return MLP(
        inputs,
        outputs,
        width=config.width,
        depth=config.depth,
        residual=config.residual,
        layer_norm=config.layer_norm,
        dropout=config.dropout,
        activation=config.activation,
        generator=generator,
    )


def build_mlp(
    config: NeuralSDEConfig, layout: StateLayout, outputs: int | None, generator: torch.Generator
) -> MLP:
    """A network that sees a state with history."""
    return mlp_of(config.network, config.history * layout.feature_dim, outputs, generator)


def _networks(config: NeuralSDEConfig, layout: StateLayout, generator: torch.Generator) -> AbstractNetworks:
    if config.network.kind == "shared":
        return SharedTrunk(build_mlp(config, layout, None, generator), layout.dim, generator=generator)
    return SeparateNetworks(*(build_mlp(config, layout, layout.dim, generator) for _ in range(3)))
