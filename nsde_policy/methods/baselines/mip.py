"""Minimal Iterative Policy: a prediction and one refinement (Pan et al. 2025, arXiv 2512.01809).

"Much Ado About Noising" reduces flow policies to two ingredients: noise on the actions in training, and a
second call whose input includes the first output. It is deterministic. The trunk is that of the Neural SDE.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from nsde_policy.config import Sampling
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import MLP
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, ChunkConfig, PolicyModel
from ..registry import register_method


@dataclass(frozen=True)
class MIPConfig(ChunkConfig):
    """Settings of Minimal Iterative Policy."""

    time: Annotated[float, Meta(gt=0, lt=1)] = 0.9
    """t* of the second call, whose input is t* times the actions plus 1 − t* times noise."""


PRESETS = MIPConfig().make_presets()


@register_method("mip", title="Two-step MIP", config=MIPConfig, presets=PRESETS)
class MIP(PolicyModel[Windows]):
    """â₀ = π(o, 0, 0), then a = π(o, t* â₀, t*); both regress the actions."""

    samples = False

    def __init__(self, config: MIPConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: MIPConfig = config
        self.layout = StateLayout(spec)
        self.chunk = config.horizon * spec.act_dim
        inputs = config.history * self.layout.feature_dim + self.chunk + 1
        self.network = MLP(inputs, self.chunk, config.network, generator=generator)

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return ‖π(o, 0, 0) − a‖² and ‖π(o, t* a + (1 − t*) z, t*) − a‖², means over half ranges."""
        features = self.layout.features(batch.states).flatten(-2)
        actions = self.layout.to_unit(batch.actions).flatten(-2)
        time = self.config.time
        noise = torch.randn(actions.shape, generator=generator, device=actions.device)
        shown = torch.stack([torch.zeros_like(actions), time * actions + (1 - time) * noise])
        times = torch.stack([torch.zeros_like(actions[:, :1]), torch.full_like(actions[:, :1], time)])
        output = self.network(torch.cat([features.repeat(2, 1, 1), shown, times], dim=-1), generator)
        first, second = (output.float() - actions).square()
        return {"first": first.mean(), "second": second.mean()}

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Return the output of the second call; deterministic."""
        return self._predict_twice(states, states.new_zeros(len(states), self.chunk), steps)

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Return two calls for the whole chunk."""
        return 2

    def _predict_twice(self, states: Tensor, noise: Tensor, steps: int) -> Tensor:
        """Predict the chunk from noise (rows, chunk), then from a point between the noise and the result."""
        features = self.layout.features(states).flatten(-2)
        guess = noise
        for time in (0.0, self.config.time):
            times = torch.full_like(features[:, :1], time)
            shown = time * guess + (1 - time) * noise
            guess = self.network(torch.cat([features, shown, times], dim=-1))
        present = self.config.history - 1
        actions = guess.reshape(len(states), self.config.horizon, -1)
        return self.layout.from_unit(actions[:, present : present + steps])
