"""The dynamics model: predicts the next observation from the last states and the action.

A Neural SDE predicts observations as well, but its step is p(a_t | x_t) p(o_{t+1} | x_t): observation and
action have independent noise, so its own futures do not show what an action does. This model is the missing
factor p(o_{t+1} | x_t, a_t). It has its own network because a policy is trained on blurred states, and
selection has to tell apart plans whose ends differ by less than the blur.
"""

import torch
from torch import Tensor

from nsde_policy.config import SelectionConfig
from nsde_policy.core.networks import MLP
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Transitions, blur
from nsde_policy.methods.base import LossParts, Stage, TrainableModel

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
        """States in the input."""
        inputs = self.states * self.layout.feature_dim + spec.act_dim
        self.network = MLP(inputs, spec.obs_dim, config.network, generator=generator)

    def loss(self, batch: Transitions, generator: torch.Generator) -> LossParts:
        """Compare predicted and recorded changes of the observation, in typical increments."""
        layout, obs_dim = self.layout, self.layout.spec.obs_dim
        states = batch.x.reshape(len(batch.x), -1, layout.dim)[:, : self.states]
        change = layout.increment(states[:, 0], batch.x_next) / layout.increment_std
        blurred = blur(states, self.noise * layout.increment_std, generator)
        predicted = self._predict_change(blurred, batch.x_next[:, obs_dim:])
        return LossParts({"dynamics": (predicted - change[:, :obs_dim]).square().sum(-1).mean()})

    def stages(self) -> tuple[Stage, ...]:
        """Train all parameters in one stage."""
        return (Stage(("dynamics",), tuple(self.parameters())),)

    def predict(self, states: Tensor, actions: Tensor) -> Tensor:
        """Predict the observations to which actions lead.

        Args:
            states: (rows, history, d), newest first.
            actions: (rows, steps, act_dim).

        Returns:
            Observations after each action, (rows, steps, obs_dim).
        """
        obs_dim = self.layout.spec.obs_dim
        scale, known, found = self.layout.increment_std[:obs_dim], states[:, : self.states], []
        for action in actions.unbind(1):
            found.append(known[:, 0, :obs_dim] + scale * self._predict_change(known, action))
            now = torch.cat([found[-1], action], dim=-1)[:, None]
            known = torch.cat([now, known[:, :-1]], dim=1)
        return torch.stack(found, dim=1)

    def _predict_change(self, states: Tensor, action: Tensor) -> Tensor:
        """Return the change of the observation in typical increments, (rows, obs_dim)."""
        features = self.layout.features(states).flatten(1)
        change: Tensor = self.network(torch.cat([features, self.layout.to_unit(action)], dim=-1))
        return change
