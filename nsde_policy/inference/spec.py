"""What a control loop knows of a policy: its sizes, and a plan for what has been seen. Numpy alone.

A trained run on torch, an exported graph and a policy on another machine all answer to this.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from nsde_policy.core.spec import LARGEST_SIZE, StateSpec
from nsde_policy.errors import ConfigError
from nsde_policy.inference.history import History


class Plan(NamedTuple):
    """What a policy means to do, and what it expects to come of it."""

    actions: np.ndarray
    """Commands for the next control periods, (steps, act_dim)."""
    states: np.ndarray | None = None
    """The states it expects to pass, the present one first, (steps + 1, obs_dim + act_dim); None for methods
    that foresee actions alone."""
    std: np.ndarray | None = None
    """How unsure each command is: σ of its change over its own period, (steps, act_dim); None for methods
    that do not say."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec(StateSpec):
    """The sizes of a policy, as plain numbers that fit in a JSON file."""

    history: int
    """States it is given, the present one included."""
    chunk: int
    """Actions executed before planning again (T_a), as it was trained to be used."""
    longest_chunk: int
    """Most actions of one plan; 0 if a plan can be of any length."""
    first_action_from: tuple[int, ...]
    """Columns of the first observation that replace the action before it; empty for zeros."""
    method: str = "neural_sde"
    encoder: str = "identity"
    """Encoder of named observations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (self.obs_dim, self.act_dim, self.history, self.chunk)
        if min(sizes) < 1 or max(sizes) > LARGEST_SIZE or self.longest_chunk < 0:
            raise ConfigError(
                f"a policy needs obs_dim, act_dim, history and chunk of at least 1, got {sizes}"
            )
        columns = self.first_action_from
        if len(columns) not in (0, self.act_dim) or not set(columns) <= set(range(self.obs_dim)):
            raise ConfigError(
                f"first_action_from must name {self.act_dim} columns of the observation, got {columns!s:.80}"
            )

    def new_history(self) -> History:
        """An empty memory for one episode."""
        return History(
            obs_dim=self.obs_dim,
            act_dim=self.act_dim,
            history=self.history,
            first_action_from=self.first_action_from,
        )


class Planner(Protocol):
    """Whatever can be asked for a plan."""

    @property
    def spec(self) -> PolicySpec:
        """Its sizes."""

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first, as `History.states` returns them.

        The same states and seed give the same plan.
        """
