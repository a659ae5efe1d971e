"""The interface between planners and control loops: sizes, history, plans, planners; needs numpy only."""

import abc
import copy
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsde_policy.core.spec import LARGEST_SIZE, CameraSpec, StateSpec
from nsde_policy.errors import ConfigError, PolicyInputError

SPARE_COMMANDS = 1
"""Commands planned beyond those to execute: for a plan that is a little late, and to interpolate to the end
of the last period."""


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
        """Add the observation of a new policy period, (obs_dim,).

        A function that returns it is called only if a plan needs it: encoding every frame of a camera would
        be slow, and a plan needs the last few. `plain` are its first columns, which may replace the action
        before the first one; without them the first observation is computed now.
        """
        encoded = functools.cache(obs) if callable(obs) else np.array(obs, np.float64)
        if self._last_action is None:
            columns = self._spec.first_action_from
            if plain is None or max(columns, default=-1) >= len(plain):
                plain = np.asarray(encoded() if callable(encoded) else encoded, np.float64)
            (self._last_action,) = replace_first_action(
                plain[None], columns, self._spec.first_action, self._spec.act_dim
            )
        self._states.appendleft((encoded, self._last_action))

    @property
    def last_action(self) -> np.ndarray:
        """The last action that was sent; before the first one, its replacement."""
        if self._last_action is None:
            raise PolicyInputError("the history is empty: call add_observation first")
        return self._last_action

    def add_action(self, action: np.ndarray | Sequence[float]) -> None:
        """Add the action that was sent to the robot, (act_dim,); it may differ from the planned one."""
        self._last_action = np.array(action, np.float64)

    def forget_observations(self) -> None:
        """Forget all observations, and remember the last action."""
        self._states.clear()

    def states(self) -> np.ndarray:
        """Return the states newest first, (history, d) float32; the oldest is repeated to fill the shape."""
        if not self._states:
            raise PolicyInputError("the history is empty: call add_observation first")
        states = [np.concatenate([obs() if callable(obs) else obs, action]) for obs, action in self._states]
        states += [states[-1]] * ((self._states.maxlen or 1) - len(states))
        return np.stack(states).astype(np.float32)


def replace_first_action(
    obs: np.ndarray, columns: Sequence[int], constants: Sequence[float], act_dim: int
) -> np.ndarray:
    """Return what replaces the action before each first observation, (n, obs_dim) to (n, act_dim).

    `columns` holds the observation column of each action column, -1 for the next of `constants`. Without
    columns, actions are zero.
    """
    first = np.zeros((len(obs), act_dim), obs.dtype)
    if columns:
        index = np.asarray(columns)
        first[:, index >= 0] = obs[:, index[index >= 0]]
        first[:, index < 0] = constants
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


class Plan(NamedTuple):
    """Actions for the next policy periods, with the predicted states if the method has them."""

    actions: np.ndarray
    """Actions for the next policy periods, (steps, act_dim)."""
    states: np.ndarray | None = None
    """Predicted states, the current one first, (steps + 1, obs_dim + act_dim); None if the method predicts
    actions only."""
    std: np.ndarray | None = None
    """Standard deviation σ of each action over its policy period, (steps, act_dim); None if the method does
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


class Planner(abc.ABC):
    """Anything that plans actions: a trained policy, an exported graph, a client of a server.

    Subclass it to run your own planner in a session or behind a server.
    """

    spec: PolicySpec
    """Sizes and ranges of the policy."""

    @property
    def candidates(self) -> int:
        """Most plans that are compared before one is executed; 1 without plan selection."""
        return 1

    @property
    def largest_batch(self) -> int | None:
        """Most rows of `plan_rows` that are computed together; None for any number."""
        return 1

    @abc.abstractmethod
    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first, as `History.states` returns them.

        The same states and seed give the same plan. At most `candidates` plans are compared.
        """

    def plan_rows(
        self,
        states: Sequence[np.ndarray],
        *,
        steps: int,
        seeds: Sequence[int],
        candidates: int | None = None,
    ) -> list[Plan]:
        """Plan for several robots, each from its states and seed as `plan_from` does."""
        rows = zip(states, seeds, strict=True)
        return [self.plan_from(row, steps=steps, seed=seed, candidates=candidates) for row, seed in rows]

    def encode_frames(
        self, values: np.ndarray, frames: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode the frames of n moments; return features (n, image_features), and how much is visible.

        Args:
            values: Low-dimensional observations of these moments, (n, plain_dim).
            frames: Frames of each camera, (n, height, width, 3) uint8.

        Returns:
            The features, and the fraction of them that is likely to be right, (n,), or None if it is unknown.
        """
        raise PolicyInputError(f"{type(self).__name__} cannot encode camera frames")
