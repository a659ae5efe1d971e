"""What a control loop knows of a policy: its sizes, and a plan for what has been seen. Numpy alone.

A trained run on torch, an exported graph and a policy on another machine all answer to this.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from nsde_policy.config import Jsonable
from nsde_policy.inference.history import Memory


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


@dataclass(frozen=True)
class PolicySpec(Jsonable):
    """The sizes of a policy, as plain numbers that fit in a JSON file."""

    obs_dim: int
    act_dim: int
    history: int
    """States it is shown, the present one included."""
    chunk: int
    """Actions executed before planning again (T_a), as it was trained to be used."""
    longest_chunk: int
    """Most actions of one plan; 0 where it can be continued at will."""
    first_action_from: tuple[int, ...]
    """Columns of the first observation that stand for the action before it; empty for zeros."""
    circular: tuple[int, ...]
    """Numbers of a state that are angles, radians."""
    low: tuple[float, ...]
    """Smallest value of each number of a state in the demonstrations."""
    high: tuple[float, ...]
    """Largest value of each number of a state in the demonstrations."""
    increment_std: tuple[float, ...]
    """Standard deviation of each number's change over one control period."""
    method: str = "neural_sde"

    def memory(self) -> Memory:
        """An empty memory for one episode."""
        return Memory(
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
        """Plan from states (history, obs_dim + act_dim), newest first, as `Memory.states` returns them.

        The same states and seed give the same plan.
        """
