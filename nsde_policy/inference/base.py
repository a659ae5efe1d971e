"""What every policy does in a robot's loop, wherever its plans are made: remember, act, open a session.

Numpy alone: a run on torch, an exported graph and a policy on another machine are all of this kind.
"""

import abc
import operator
from collections import deque
from typing import Any, Literal, TypeVar

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import OnFault
from nsde_policy.control.limits import Limits
from nsde_policy.encoders.identity import describe_value, to_floats
from nsde_policy.errors import PolicyInputError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.history import History
from nsde_policy.inference.observation import (
    as_lone_observation,
    as_observations,
    check_plausible,
)
from nsde_policy.inference.spec import Plan, PolicySpec

G = TypeVar("G")


class BasePolicy(abc.ABC):
    """A `Planner` that is asked for one action per control period.

    It plans `chunk` actions at once, and plans again when they are used up:

        period      0 1 2 3 4 5 6 7 | 8 9 …
        observed    x x x x x x x x | x
        planned     x x x x x x x x   x x x x x x x x
        executed    x x x x x x x x | x x …

    Where the noise of a plan comes from is each policy's own affair.
    """

    def __init__(self, spec: PolicySpec, calibration: Calibration | None) -> None:
        self._spec = spec
        self.calibration: Calibration = (calibration or Calibration.of_spec(spec)).check(spec)
        """What a control loop takes from the demonstrations."""
        self._queue: deque[np.ndarray] = deque()
        self._memory = spec.new_history()

    @abc.abstractmethod
    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""

    @abc.abstractmethod
    def _next_actions(self, memory: History) -> np.ndarray:
        """A chunk planned from `memory` with the policy's own noise, (chunk, act_dim)."""

    @abc.abstractmethod
    def _seed(self, seed: int) -> None:
        """Begin its own noise anew."""

    @property
    def spec(self) -> PolicySpec:
        """Its sizes."""
        return self._spec

    @property
    def obs_dim(self) -> int:
        """Numbers in an observation."""
        return self._spec.obs_dim

    @property
    def act_dim(self) -> int:
        """Numbers in an action."""
        return self._spec.act_dim

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the episode: call it whenever the world jumps. A seed makes what follows repeat itself."""
        self._queue.clear()
        self._memory = self._spec.new_history()
        if seed is not None:
            self._seed(seed)

    def select_action(self, obs: Any) -> np.ndarray:
        """The action for this control period, (act_dim,), after one observation (`observation.py`).

        A batch of one, (1, obs_dim), gets a batch of one, (1, act_dim). An observation that cannot be right,
        against the demonstrations, is refused with `PolicyInputError`.
        """
        one, in_batch = as_lone_observation(obs, self._spec)
        self._memory.add_observation(check_plausible(one, self._spec))
        if not self._queue:
            self._queue.extend(self._next_actions(self._memory))
        action = self._queue.popleft()
        self._memory.add_action(action)
        return action[None] if in_batch else action

    def session(
        self,
        rate_hz: float = 10.0,
        deadline_s: float = 0.05,
        limits: Literal["from_demos"] | Limits = "from_demos",
        on_fault: OnFault = "hold",
        **settings: Any,
    ) -> Session:
        """A control loop with this policy; `settings` are the other fields of `SessionConfig`.

        with policy.session(rate_hz=10, deadline_s=0.05) as session:
            for obs, t in robot:
                robot.send(session.step(obs, t))
        """
        config = SessionConfig(rate_hz, deadline_s, limits, on_fault, **settings)
        return Session(self, config, calibration=self.calibration)

    def _checked_states(self, states: np.ndarray) -> np.ndarray:
        """`states` as an array, where they have the shape of this policy's and float32 can hold them."""
        wanted = (self._spec.history, self._spec.obs_dim + self._spec.act_dim)
        try:
            with np.errstate(over="ignore"):  # what float32 cannot hold is not finite, and refused as such
                finite = np.isfinite(to_floats(states).astype(np.float32)).all()
                array: np.ndarray = np.asarray(states)
        except (TypeError, ValueError, OverflowError):
            raise PolicyInputError(
                f"states are numbers of shape {wanted}, got {describe_value(states)}"
            ) from None
        if array.shape != wanted:
            raise PolicyInputError(f"states of this policy have shape {wanted}, got {array.shape}")
        if not finite:
            raise PolicyInputError(f"states must be finite, got {array.tolist()!s:.200}")
        return array

    def _first_looks(self, obs: np.ndarray) -> list[History]:
        """The memories of episodes that begin with `obs`, (obs_dim,) or (B, obs_dim)."""
        memories = []
        for row in np.atleast_2d(obs):
            memory = self._spec.new_history()
            memory.add_observation(check_plausible(row, self._spec))
            memories.append(memory)
        return memories


class NumpyPolicy(BasePolicy):
    """One whose noise comes from numpy's generators, because there is no torch where it runs."""

    @abc.abstractmethod
    def _drawn(self, memory: History, rng: np.random.Generator) -> np.ndarray:
        """A chunk planned from `memory` with noise from `rng`, (chunk, act_dim)."""

    def _seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(require_seed(seed))

    def _next_actions(self, memory: History) -> np.ndarray:
        return self._drawn(memory, self._rng)

    def predict_action_chunk(
        self, obs: Any, *, seed: int | None = None, generator: np.random.Generator | None = None
    ) -> np.ndarray:
        """Plan from observations alone, as at the start of an episode: (chunk, act_dim) for one observation,
        (B, chunk, act_dim) for a batch (B, obs_dim), row by row.

        Row k has the noise of `plan_from` with `seed` + k; without a seed, it comes from `generator`, or from
        the policy's own.
        """
        if seed is not None and generator is not None:
            raise PolicyInputError("noise comes from a seed or from a generator, got both: give one")
        given = as_observations(obs, self._spec)
        memories = self._first_looks(given)
        if seed is None:
            rng = self._rng if generator is None else checked_generator(generator, np.random.Generator)
            chunks = [self._drawn(memory, rng) for memory in memories]
        else:
            seeds = range(require_seed(seed), require_seed(seed) + len(memories))
            asked = zip(memories, seeds, strict=True)
            chunks = [self.plan_from(m.states(), steps=self._spec.chunk, seed=s).actions for m, s in asked]
        return np.stack(chunks) if given.ndim == 2 else chunks[0]


def checked_generator(given: Any, kind: type[G]) -> G:
    """`given` itself, where it is a generator of the library that noise is drawn with."""
    if not isinstance(given, kind):
        library = kind.__module__.partition(".")[0]
        raise PolicyInputError(
            f"noise comes from {library}'s {kind.__name__} here, got {describe_value(given)}"
        )
    return given


def require_int(value: Any, name: str) -> int:
    """A whole number as an int; `PolicyInputError` for anything else, so that nothing is cut off unseen."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise PolicyInputError(f"{name} must be a whole number, got {' '.join(repr(value).split()):.60}")


def require_seed(value: Any) -> int:
    """A seed as an int from 0 to 2**63 - 1, which every policy takes."""
    seed = require_int(value, "seed")
    if not 0 <= seed < 2**63:
        raise PolicyInputError(f"a seed lies between 0 and 2**63 - 1, got {seed}")
    return seed
