"""The states of the current episode that a policy plans from; needs numpy only."""

import copy
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nsde_policy.errors import ConfigError, PolicyInputError

if TYPE_CHECKING:
    from nsde_policy.planner.interface import PolicySpec


class History:
    """The last states of an episode, where a state is x = (observation, previous action).

    Observations and actions are taken as they are; `observation.py` checks those of a robot. `spec` names the
    action before the first one.
    """

    def __init__(self, spec: "PolicySpec") -> None:
        self._spec = spec
        self._last_action: np.ndarray | None = None
        self._states: deque[tuple[np.ndarray | Callable[[], np.ndarray], np.ndarray]]
        self._states = deque(maxlen=spec.history)

    def copy(self) -> "History":
        """Return an independent copy."""
        copied = copy.copy(self)
        copied._states = self._states.copy()
        return copied

    def add_observation(
        self,
        obs: np.ndarray | Sequence[float] | Callable[[], np.ndarray],
        *,
        plain: np.ndarray | None = None,
    ) -> None:
        """Add the observation of a new control period, (obs_dim,).

        A function that returns it is called only if a plan needs it: encoding every frame of a camera would
        be slow, and a plan needs the last few. `plain` are its first columns, which may replace the action
        before the first one; without them the first observation is computed now.
        """
        known = functools.cache(obs) if callable(obs) else np.array(obs, np.float64)
        if self._last_action is None:
            columns = self._spec.first_action_from
            if plain is None or max(columns, default=-1) >= len(plain):
                plain = np.asarray(known() if callable(known) else known, np.float64)
            (self._last_action,) = replace_first_action(
                plain[None], columns, self._spec.first_action, self._spec.act_dim
            )
        self._states.appendleft((known, self._last_action))

    @property
    def last_action(self) -> np.ndarray:
        """The last action that was sent; before the first one, its replacement."""
        if self._last_action is None:
            raise PolicyInputError("the history is empty: call add_observation first")
        return self._last_action

    def add_action(self, action: np.ndarray | Sequence[float]) -> None:
        """Add the action that was sent to the robot, (act_dim,); it may differ from the planned one."""
        self._last_action = np.array(action, np.float64)

    def states(self) -> np.ndarray:
        """Return the states newest first, (history, d) float32; the oldest is repeated to fill the shape."""
        if not self._states:
            raise PolicyInputError("the history is empty: call add_observation first")
        known = [np.concatenate([obs() if callable(obs) else obs, action]) for obs, action in self._states]
        known += [known[-1]] * ((self._states.maxlen or 1) - len(known))
        return np.stack(known).astype(np.float32)


def replace_first_action(
    obs: np.ndarray, columns: Sequence[int], constants: Sequence[float], act_dim: int
) -> np.ndarray:
    """Return what replaces the action before each first observation, (n, obs_dim) to (n, act_dim).

    `columns` holds the observation column of each action column, -1 for the next of `constants`. Without
    columns, actions are zero.
    """
    first = np.zeros((len(obs), act_dim), obs.dtype)
    if columns:
        chosen = np.asarray(columns)
        first[:, chosen >= 0] = obs[:, chosen[chosen >= 0]]
        first[:, chosen < 0] = constants
    return first


def check_first_action(
    columns: Sequence[int], constants: Sequence[float], obs_dim: int, act_dim: int
) -> None:
    """Raise `ConfigError` unless the arguments of `replace_first_action` fit the sizes of a policy."""
    if columns and (len(columns) != act_dim or not set(columns) <= set(range(-1, obs_dim))):
        raise ConfigError(
            f"first_action_from must name {act_dim} observation columns from 0 to {obs_dim - 1}, or -1 for a "
            f"value of first_action, got {list(columns)!s:.80}"
        )
    unmatched = sum(column < 0 for column in columns)
    if len(constants) != unmatched or not all(map(math.isfinite, constants)):
        raise ConfigError(
            f"first_action must hold {unmatched} finite numbers, one for each -1 in first_action_from, "
            f"got {list(constants)!s:.80}"
        )
