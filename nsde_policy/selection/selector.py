"""The plan selector: decides where plans are compared, predicts where they lead, and picks one."""

import torch
from torch import Tensor, nn

from nsde_policy.core.state import wrap_circular
from nsde_policy.data.goal import GATE, Goal

from .dynamics import DynamicsModel
from .rule import SelectionRule


class PlanSelector(nn.Module):
    """A dynamics model with a goal and with demonstrated observations, which plans are judged by."""

    goal: Tensor
    whitening: Tensor
    is_angle: Tensor
    columns: Tensor
    references: Tensor
    """Demonstrated observations in typical increments, as `_scale` returns them, (references, features)."""

    def __init__(
        self, rule: SelectionRule, dynamics: DynamicsModel, *, directions: int, references: int
    ) -> None:
        super().__init__()
        self.rule = self.trained_rule = rule
        self.dynamics = dynamics
        size, spec = len(rule.columns), dynamics.layout.spec
        self.register_buffer("goal", torch.zeros(size))
        self.register_buffer("whitening", torch.zeros(size, directions))
        angles = [column in spec.circular for column in rule.columns]
        self.register_buffer("is_angle", torch.tensor(angles, dtype=torch.bool))
        self.register_buffer("columns", torch.tensor(rule.columns, dtype=torch.long), persistent=False)
        self.register_buffer("references", torch.zeros(references, dynamics.layout.obs_feature_dim))

    def set_goal(self, goal: Goal) -> None:
        """Copy the measured goal."""
        self.goal.copy_(torch.from_numpy(goal.mean))
        self.whitening.copy_(torch.from_numpy(goal.whitening))

    def set_references(self, obs: Tensor) -> None:
        """Copy demonstrated observations (references, obs_dim)."""
        self.references.copy_(self._scale(obs))

    def compares(self, states: Tensor) -> Tensor:
        """Return in which rows of states (rows, history, d) several plans are compared, (rows,) bool.

        The goal rule compares them near the goal only: far from it, being nearer is no measure of progress.
        """
        if self.rule.kind == "goal":
            return self.goal_distance(states[:, 0]) < GATE
        return torch.full((len(states),), self.rule.kind == "support", device=states.device)

    def goal_distance(self, obs: Tensor) -> Tensor:
        """Return the squared Mahalanobis distance to the goal, per column, of (..., at least obs_dim)."""
        difference = wrap_circular(obs.index_select(-1, self.columns) - self.goal, self.is_angle)
        return (difference @ self.whitening).square().mean(-1)

    def support_distance(self, obs: Tensor) -> Tensor:
        """Return the distance to the nearest demonstrated observation, of (..., obs_dim)."""
        scaled, references = self._scale(obs), self.references
        nearest = (references.square().sum(-1) - 2 * scaled @ references.T).amin(-1)
        return (scaled.square().sum(-1) + nearest).clamp_min(0).sqrt()

    def compare(self, states: Tensor, actions: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Predict where `count` plans of each row lead, (rows · count, steps + 1, d), and what they cost."""
        predicted = self.dynamics.predict(states, actions)
        led_to = torch.cat([states[:, :1], torch.cat([predicted, actions], dim=-1)], dim=1)
        return led_to, self.judge(predicted).reshape(-1, count)

    def judge(self, predicted: Tensor) -> Tensor:
        """Return the cost of plans that lead to observations (..., steps, obs_dim), (...).

        With the goal rule, it is the distance of the last observation from the goal, squared; with the
        support rule, the largest distance of any observation from the demonstrated ones.
        """
        if self.rule.kind == "goal":
            return self.goal_distance(predicted[..., -1, :])
        return self.support_distance(predicted).amax(-1)

    def choose(self, costs: Tensor) -> Tensor:
        """Return the index of the plan to execute, by the costs of the candidates, (rows, candidates).

        The support rule takes the first plan within the threshold: the best one would always be the most
        common way, and rare ways would be lost.
        """
        if self.rule.kind == "support":
            within = costs <= self.rule.threshold
            costs = torch.where(within, within.cumsum(1) - costs.shape[1] - 1.0, costs)
        return costs.argmin(1)

    def _scale(self, obs: Tensor) -> Tensor:
        """Return observations in typical increments, with angles as points on a circle of that scale."""
        layout, size = self.dynamics.layout, self.dynamics.layout.spec.obs_dim
        angles = layout.circular_index[: layout.obs_feature_dim - size]
        others = layout.linear_index[: size - len(angles)]
        std, turned = layout.increment_std[angles], obs.index_select(-1, angles)
        straight = obs.index_select(-1, others) / layout.increment_std[others]
        return torch.cat([straight, turned.sin() / std, turned.cos() / std], dim=-1)
