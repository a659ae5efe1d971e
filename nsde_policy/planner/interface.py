"""The interface between planners and control loops: sizes of a policy, plans, planners; needs numpy only."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from nsde_policy.core.spec import LARGEST_SIZE, CameraSpec, StateSpec
from nsde_policy.errors import ConfigError
from nsde_policy.planner.history import History, check_first_action


class Plan(NamedTuple):
    """Actions for the next control periods, with the predicted states if the method has them."""

    actions: np.ndarray
    """Actions for the next control periods, (steps, act_dim)."""
    states: np.ndarray | None = None
    """Predicted states, the current one first, (steps + 1, obs_dim + act_dim); None if the method predicts
    actions only."""
    std: np.ndarray | None = None
    """Standard deviation σ of each action over its control period, (steps, act_dim); None if the method does
    not report it."""
    candidates: np.ndarray | None = None
    """States to which each compared plan leads as the dynamics model predicts, the current one first,
    (candidates, steps + 1, obs_dim + act_dim); None if one plan was sampled."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec(StateSpec):
    """Sizes and ranges of a policy, as plain numbers that can be stored as JSON."""

    history: int
    """Number of states in the input, including the current one."""
    chunk: int
    """Actions executed before planning again (T_a)."""
    longest_chunk: int
    """Most actions of one plan; 0 for any length."""
    first_action_from: tuple[int, ...]
    """Columns of the first observation that replace the action before it, -1 for a value of `first_action`;
    empty for zeros."""
    first_action: tuple[float, ...] = ()
    """Action before the first one in the columns marked -1."""
    method: str = "neural_sde"
    encoder: str = "identity"
    """Encoder of named observations."""
    cameras: tuple[CameraSpec, ...] = ()
    """Cameras whose frames are encoded in the last `image_features` columns of an observation."""
    survives_lost_camera: bool = False
    """Whether it was trained to go on without one of its cameras, whose features are then in mid-range."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (self.obs_dim, self.act_dim, self.history, self.chunk)
        if min(sizes) < 1 or max(sizes) > LARGEST_SIZE or self.longest_chunk < 0:
            raise ConfigError(
                f"a policy needs obs_dim, act_dim, history and chunk of at least 1, got {sizes}"
            )
        check_first_action(self.first_action_from, self.first_action, self.obs_dim, self.act_dim)

    def new_history(self) -> History:
        """Return an empty history for a new episode."""
        return History(self)


class Planner(Protocol):
    """Anything that plans actions: a trained policy, an exported graph, a client of a server."""

    @property
    def spec(self) -> PolicySpec:
        """Sizes and ranges of the policy."""

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first, as `History.states` returns them.

        The same states and seed give the same plan.
        """
