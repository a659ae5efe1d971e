"""The dynamics model: predicts the next observation from the last states and the action.

A Neural SDE predicts observations as well, but its step is p(a_t | x_t) p(o_{t+1} | x_t): observation and
action have independent noise, so its own futures do not show what an action does. This model is the missing
factor p(o_{t+1} | x_t, a_t). It has its own network because a policy is trained on noisy states, and
selection has to tell apart plans whose ends differ by less than that noise.
"""

import torch
from torch import Tensor

from nsde_policy.config import SelectionConfig
from nsde_policy.core.batches import Transitions
from nsde_policy.core.networks import MLP
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import add_noise
from nsde_policy.methods.base import TrainableModel

MAX_STATES = 2
"""Most states in the input, the current one included."""


class DynamicsModel(TrainableModel[Transitions]):
    """o_{t+1} = o_t + s ⊙ D(x_t, x_{t−1}, a_t), where s is the typical increment of each column."""

    def __init__(
        self, config: SelectionConfig, spec: StateSpec, *, history: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.layout = StateLayout(spec)
        self.noise = config.noise
        self.states = min(history, MAX_STATES)
        inputs = self.states * self.layout.feature_dim + spec.act_dim
        self.network = MLP(inputs, spec.obs_dim, config.network, generator=generator)

    def loss(self, batch: Transitions, generator: torch.Generator) -> dict[str, Tensor]:
        """Compare predicted and recorded changes of the observation, in typical increments."""
        layout, obs_dim = self.layout, self.layout.spec.obs_dim
        states = batch.x.reshape(len(batch.x), -1, layout.dim)[:, : self.states]
        change = layout.increment(states[:, 0], batch.x_next) / layout.increment_std
        noisy = add_noise(states, self.noise * layout.increment_std, generator)
        unit = layout.to_unit(batch.x_next[:, obs_dim:])
        predicted = self.network(torch.cat([layout.features(noisy).flatten(1), unit], dim=-1))
        return {"dynamics": (predicted - change[:, :obs_dim]).square().sum(-1).mean()}

    def predict(self, states: Tensor, actions: Tensor) -> Tensor:
        """Predict the observations after each action, (rows, steps, obs_dim), from states newest first."""
        layout, obs_dim, predicted = self.layout, self.layout.spec.obs_dim, []
        scale, obs = layout.increment_std[:obs_dim], states[:, 0, :obs_dim]
        features = [*layout.features(states[:, : self.states]).unbind(1)]
        for action, unit in zip(actions.unbind(1), layout.to_unit(actions).unbind(1), strict=True):
            obs = obs + scale * self.network(torch.cat([*features, unit], dim=-1))
            features = [layout.features(torch.cat([obs, action], dim=-1)), *features[:-1]]
            predicted.append(obs)
        return torch.stack(predicted, dim=1)
