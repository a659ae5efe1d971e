"""Plain regression of an action chunk, the simplest baseline.

The trunk of the Neural SDE, the square loss and one network call for the whole chunk; deterministic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsde_policy.config import Sampling
from nsde_policy.core.batches import Windows
from nsde_policy.core.networks import MLP
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout

from ..base import BatchRng, ChunkConfig, PolicyModel
from ..registry import register_method


@dataclass(frozen=True)
class RegressionConfig(ChunkConfig):
    """Settings of regression."""


PRESETS = RegressionConfig().make_presets()


@register_method("regression", title="Regression", config=RegressionConfig, presets=PRESETS)
class Regression(PolicyModel[Windows]):
    """a = network(states), the mean of the demonstrated actions."""

    samples = False

    def __init__(self, config: RegressionConfig, spec: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: RegressionConfig = config
        self.layout = StateLayout(spec)
        inputs = config.history * self.layout.feature_dim
        self.network = MLP(inputs, config.horizon * spec.act_dim, config.network, generator=generator)

    def loss(self, batch: Windows, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean square error of the actions, in half ranges."""
        error = self._actions(batch.states, generator) - self.layout.to_unit(batch.actions)
        return {"square": error.square().mean()}

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        """Return the predicted actions; deterministic."""
        present = self.config.history - 1
        return self.layout.from_unit(self._actions(states)[:, present : present + steps])

    def _actions(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        out: Tensor = self.network(self.layout.features(states).flatten(-2), generator)
        return out.reshape(len(states), self.config.horizon, -1)
