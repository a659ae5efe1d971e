"""Minimal Iterative Policy: a guess, then a second look at it (Pan et al. 2025, arXiv 2512.01809).

"Much Ado About Noising" asks what flow policies owe their success to, and leaves two things of them: noise on
the actions in training, and a second call that is shown the first one's answer. There is no distribution to
sample from. The trunk is that of the Neural SDE and of the plain regression.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, Preset, Sampling, TrainConfig, WindowConfig, require
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Windows
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage
from nsde_policy.methods.neural_sde.equation import build_mlp
from nsde_policy.methods.registry import register_method


@dataclass(frozen=True)
class MIPConfig(WindowConfig):
    """Minimal Iterative Policy."""

    horizon: int = 9
    """Actions predicted (T_p), counted from the oldest state seen."""
    time: float = 0.9
    """t* of the second call: it is shown t* times the actions and 1 − t* times noise."""
    weighting: Literal["equal", "velocity"] = "equal"
    """Both calls' errors count alike, or as those of a flow's velocity: divided by t* and by 1 − t*."""
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(width=256, depth=6))
    """Size and shape of the network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, 0 < self.time < 1, f"need 0 < time < 1, got {self.time}")


PRESETS = {
    "default": Preset(MIPConfig(), TrainConfig(steps=100_000)),
    "fast": Preset(
        MIPConfig(network=NetworkConfig(width=256, depth=4)), TrainConfig(steps=30_000, batch_size=256)
    ),
}


@register_method("mip", title="Two-step MIP", config=MIPConfig, presets=PRESETS)
class MIP(PolicyModel[Windows]):
    """â₀ = π(o, 0, 0), then a = π(o, t* â₀, t*): both regress the actions themselves."""

    def __init__(self, config: MIPConfig, layout: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: MIPConfig = config
        self.layout = StateLayout(layout)
        chunk = config.horizon * layout.act_dim
        inputs = config.history * self.layout.feature_dim + chunk + 1
        self.network = build_mlp(config.network, inputs, chunk, generator)

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        """‖π(o, 0, 0) − a‖² and ‖π(o, t* a + (1 − t*) z, t*) − a‖², z ~ N(0, 1), a in half ranges; means."""
        features = self.layout.features(batch.states).flatten(-2)
        actions = self.layout.to_unit(batch.actions).flatten(-2)
        time = self.config.time
        noise = torch.randn(actions.shape, generator=generator, device=actions.device)
        shown = torch.cat([torch.zeros_like(actions), time * actions + (1 - time) * noise])
        times = torch.cat([torch.zeros_like(actions[:, :1]), torch.full_like(actions[:, :1], time)])
        answer = self.network(torch.cat([features.repeat(2, 1), shown, times], dim=-1), generator)
        first, second = (answer.float() - actions.repeat(2, 1)).square().chunk(2)
        equal = self.config.weighting == "equal"
        weights = (1.0, 1.0) if equal else (1 / time**2, 1 / (1 - time) ** 2)
        return LossParts({"first": weights[0] * first.mean(), "second": weights[1] * second.mean()})

    def stages(self) -> tuple[Stage, ...]:
        """Everything at once."""
        return (Stage(("first", "second"), tuple(self.parameters())),)

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """The second answer, the same whatever is drawn."""
        features = self.layout.features(states).flatten(-2)
        guess = features.new_zeros(len(states), self.config.horizon * self.layout.spec.act_dim)
        for time in (0.0, self.config.time):
            times = torch.full_like(features[:, :1], time)
            guess = self.network(torch.cat([features, time * guess, times], dim=-1))
        present = self.config.history - 1
        actions = guess.reshape(len(states), self.config.horizon, -1)
        return self.layout.from_unit(actions[:, present : present + steps])

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Two for the whole chunk."""
        return 2
