"""The interface between planners and control loops: sizes, history, plans, planners; needs numpy only.

What a planner, a robot or a callback gives is checked here, and copied as finite numbers.
"""

import abc
import copy
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.core.spec import LARGEST_SIZE, CameraSpec, StateSpec
from nsde_policy.errors import ConfigError, PlanError, PolicyInputError

SPARE_COMMANDS = 1
"""Commands planned beyond those to execute: for a plan that is a little late, and to interpolate to the end
of the last period."""
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""Larger numbers are infinite in float32, the type of the states."""


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


def check_plan(plan: object, spec: PolicySpec, *, steps: int | None = None) -> Plan:
    """Copy a plan, of any number of `steps` if that is None; a planner may change its own arrays later.

    Raise `PlanError` if it is not a `Plan`, has a wrong shape, or holds anything but finite float32 numbers.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"the planner returned {type(plan).__name__}, expected Plan")
    try:
        arrays = [None if array is None else np.array(to_floats(array, "plan")) for array in plan]
    except PolicyInputError as error:
        raise PlanError(str(error)) from None
    actions, _, _, candidates = arrays
    if actions is None or actions.ndim != 2 or not len(actions):
        shape = None if actions is None else actions.shape
        raise PlanError(f"planned actions have shape {shape}, expected (steps, {spec.act_dim})")
    count = steps or len(actions)
    shapes = {
        "actions": (count, spec.act_dim),
        "states": (count + 1, spec.dim),
        "std": (count, spec.act_dim),
        "candidates": (0 if candidates is None else len(candidates), count + 1, spec.dim),
    }
    for (name, shape), values in zip(shapes.items(), arrays, strict=True):
        if values is not None and values.shape != shape:
            raise PlanError(f"planned {name} have shape {values.shape}, expected {shape}")
        if values is not None and not is_finite(values):
            raise PlanError(
                f"planned {name} are not finite in float32; check that the states are in the units of the "
                "demonstrations, and that training did not diverge"
            )
    return Plan(actions, *arrays[1:])


def hold_action(last: np.ndarray, delta_columns: Sequence[int]) -> np.ndarray:
    """Return the action that stays where the last one (act_dim,) led; changes per period are zero."""
    held = last.copy()
    held[list(delta_columns)] = 0.0
    return held


def round_binary(actions: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """Round the columns of actions (..., act_dim) that take two values to the nearer one.

    Round what is sent, not what a policy is told about its last action: a policy that slowly changes its mind
    would begin again in every period.
    """
    rounded = actions.copy() if spec.binary else actions
    for column, low, high in spec.binary:
        rounded[..., column] = np.where(2 * actions[..., column] > low + high, high, low)
    return rounded


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


def to_floats(values: Any, name: str) -> np.ndarray:
    """Convert an array, a tensor or a list to float64, or raise `PolicyInputError` starting with `name`."""
    try:
        detach = getattr(values, "detach", None)  # a tensor, of a library that need not be installed
        if callable(detach):
            values = detach().cpu()
            values = values if values.is_complex() else values.double()  # numpy has no bfloat16
        if np.iscomplexobj(values):
            raise TypeError("complex numbers")
        return np.asarray(values, dtype=np.float64)
    except Exception:  # the conversion is code of the object, which may raise anything
        raise PolicyInputError(f"{name} must hold numbers, got {describe_value(values)}") from None


def describe_value(value: object) -> str:
    """Format a value and its type for an error message, on one line."""
    return f"{type(value).__name__} {' '.join(repr(value).split()):.60}"


def check_array(values: object, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Copy finite numbers of a shape as float64, or raise a `PolicyInputError` that starts with `name`."""
    array = np.array(to_floats(values, name))
    if array.shape != shape:
        raise PolicyInputError(f"{name} must have shape {shape}, got {array.shape}")
    if not is_finite(array):
        raise PolicyInputError(f"{name} must be finite, got {array.tolist()!s:.200}")
    return array


def is_finite(array: np.ndarray) -> bool:
    """Return whether all numbers are finite in float32."""
    return bool((np.abs(array) <= LARGEST_FLOAT32).all())
