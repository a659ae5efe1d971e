"""What one episode's policy remembers; numpy alone, so that a robot without torch can have it too."""

import copy
from collections import deque
from collections.abc import Sequence

import numpy as np

from nsde_policy.errors import PolicyInputError

_LARGEST = float(np.finfo(np.float32).max)
"""Beyond it, numbers are infinite to a network."""


class History:
    """The last observations, and the actions before them.

    A state is x = (observation, the action before it). `first_action_from` are the columns of the first
    observation that stand for the action before it; none stands for zeros.
    """

    def __init__(
        self, *, obs_dim: int, act_dim: int, history: int, first_action_from: Sequence[int] = ()
    ) -> None:
        self._first_action_from = list(first_action_from)
        self._obs_dim, self._act_dim = obs_dim, act_dim
        self._last_action: np.ndarray | None = None
        self._states: deque[np.ndarray] = deque(maxlen=history)

    def copy(self) -> "History":
        """The same memory, which later events do not change."""
        twin = copy.copy(self)
        twin._states = self._states.copy()
        return twin

    def add_observation(self, obs: np.ndarray | Sequence[float]) -> None:
        """Take in the observation of a new control period, (obs_dim,)."""
        now = _finite(obs, self._obs_dim, "an observation")
        if self._last_action is None:
            columns = self._first_action_from
            self._last_action = now[columns] if columns else np.zeros(self._act_dim)
        self._states.appendleft(np.concatenate([now, self._last_action]))

    @property
    def last_action(self) -> np.ndarray:
        """The command in force: the last action, or what stands for it before the first."""
        if self._last_action is None:
            raise PolicyInputError("nothing has been observed yet: show the policy an observation first")
        return self._last_action

    def add_action(self, action: np.ndarray | Sequence[float]) -> None:
        """Note the action that was sent, which may differ from the one that was planned, (act_dim,)."""
        self._last_action = _finite(action, self._act_dim, "an action")

    def states(self) -> np.ndarray:
        """States newest first, the oldest repeated where there are too few, (history, d) float32."""
        if not self._states:
            raise PolicyInputError("nothing has been observed yet: show the policy an observation first")
        known = list(self._states)
        known += [known[-1]] * ((self._states.maxlen or 1) - len(known))
        return np.stack(known).astype(np.float32)


def _finite(values: np.ndarray | Sequence[float], size: int, what: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (size,):
        raise PolicyInputError(f"{what} of this policy has shape ({size},), got {array.shape}")
    if not (np.abs(array) <= _LARGEST).all():
        raise PolicyInputError(f"{what} must be finite, got {array.tolist()}")
    return array
