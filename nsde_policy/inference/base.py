"""The base class of all policies: keep a history, select actions, open a control session.

It needs numpy only. Subclasses plan with torch (`Policy`), an exported graph (`RuntimePolicy`) or a server.
"""

import abc
import operator
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import OnFault
from nsde_policy.control.limits import Limits
from nsde_policy.core.spec import STATE_KEY
from nsde_policy.errors import PolicyInputError
from nsde_policy.planner.calibration import Calibration
from nsde_policy.planner.history import History
from nsde_policy.planner.observation import (
    check_finite_observation,
    check_plausible,
    check_plausible_frames,
    describe_value,
    encode_plain,
    parse_frames,
    parse_observations,
    parse_single_observation,
    to_floats,
)
from nsde_policy.planner.spec import Plan, PolicySpec

G = TypeVar("G")


class BasePolicy(abc.ABC):
    """A `Planner` that returns one action per control period.

    It plans `chunk` actions at once and plans again when all of them were executed:

        period      0 1 2 3 4 5 6 7 | 8 9 …
        observed    x x x x x x x x | x
        planned     x x x x x x x x   x x x x x x x x
        executed    x x x x x x x x | x x …
    """

    def __init__(self, spec: PolicySpec, calibration: Calibration | None) -> None:
        self._spec = spec
        self.calibration: Calibration = (calibration or Calibration.from_spec(spec)).check(spec)
        """Limits and statistics measured on the demonstrations, used by a control session."""
        self._queue: deque[np.ndarray] = deque()
        self._history = spec.new_history()

    @abc.abstractmethod
    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""

    @abc.abstractmethod
    def _plan_chunk(self, history: History) -> np.ndarray:
        """Plan a chunk from `history` with the policy's own random generator, (chunk, act_dim)."""

    @abc.abstractmethod
    def _reseed(self, seed: int) -> None:
        """Restart the policy's own random generator."""

    def encode(self, observations: Mapping[str, object]) -> np.ndarray:
        """Encode named observations as the vector that the policy was trained on, (obs_dim,).

        Args:
            observations: `observation.state` and a frame of each camera of `spec.cameras`; a batch of them,
                with one more axis, gives (B, obs_dim).

        Raises:
            PolicyInputError: If a part is missing, or has the wrong shape or type.
        """
        return self._encode(observations, check=False)

    def _encode_plausible(self, observations: Mapping[str, object]) -> np.ndarray:
        """Encode as `encode`, or raise `PolicyInputError` if a frame is black, uniform or noise."""
        return self._encode(observations, check=True)

    def _encode(self, observations: Mapping[str, object], *, check: bool) -> np.ndarray:
        plain = encode_plain(observations, self._spec)
        if not self._spec.cameras:
            return plain
        rows, frames = self._parse_frames(plain, observations, check=check)
        encoded = self._append_codes(check_finite_observation(rows), frames)
        return encoded if plain.ndim == 2 else encoded[0]

    def _append_codes(self, rows: np.ndarray, frames: list[np.ndarray]) -> np.ndarray:
        """Append the codes of their frames to finite low-dimensional observations, (n, obs_dim)."""
        codes = self._encode_frames(rows, frames)
        if not np.isfinite(codes).all():
            raise PolicyInputError(
                "the encoder returned codes of camera frames that are not finite; its training diverged or "
                "its weights are damaged: restore the run, or train it again"
            )
        return np.concatenate([rows, codes], axis=1)

    def _parse_frames(
        self, plain: np.ndarray, observations: Mapping[str, object], *, check: bool
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the low-dimensional part, (n, plain_dim), and frames, each (n, height, width, 3)."""
        if plain.shape[-1:] != (self._spec.plain_dim,):
            raise PolicyInputError(
                f"{STATE_KEY} must have {self._spec.plain_dim} values, got shape {plain.shape}"
            )
        frames = parse_frames(observations, self._spec.cameras, is_batch=plain.ndim == 2)
        rows = np.atleast_2d(plain)
        if len(rows) != len(frames[0]):
            raise PolicyInputError(f"{STATE_KEY} has {len(rows)} rows, the frames have {len(frames[0])}")
        if check:
            check_plausible_frames(frames, self.calibration.frames)
        return rows, frames

    def _encode_frames(self, values: np.ndarray, frames: list[np.ndarray]) -> np.ndarray:
        """Encode frames of all cameras, each (n, height, width, 3) uint8, as (n, codes).

        The low-dimensional observations of the same moments are `values`, (n, plain_dim).
        """
        raise PolicyInputError(f"{type(self).__name__} cannot encode camera frames")

    @property
    def spec(self) -> PolicySpec:
        """Sizes and ranges of this policy."""
        return self._spec

    @property
    def obs_dim(self) -> int:
        """Size of an observation."""
        return self._spec.obs_dim

    @property
    def act_dim(self) -> int:
        """Number of action dimensions."""
        return self._spec.act_dim

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode: clear the history and the planned actions.

        Call it whenever the robot or the scene was moved by hand. With a `seed`, the actions are
        reproducible.
        """
        self._queue.clear()
        self._history = self._spec.new_history()
        if seed is not None:
            self._reseed(seed)

    def select_action(self, obs: object) -> np.ndarray:
        """Return the action for this control period, (act_dim,).

        Args:
            obs: One observation in any form that `observation.py` accepts. A batch of one, (1, obs_dim),
                gives a batch of one action, (1, act_dim).

        Raises:
            PolicyInputError: If the observation has the wrong shape, is not finite, or is implausible
                compared with the demonstrations.
        """
        if self._spec.cameras and isinstance(obs, Mapping):
            is_batch = self._observe_frames(obs)
        else:
            one, is_batch = parse_single_observation(obs, self._spec, self.encode)
            self._history.add_observation(check_plausible(one, self._spec))
        if not self._queue:
            self._queue.extend(self._plan_chunk(self._history))
        action = self._queue.popleft()
        self._history.add_action(action)
        return action[None] if is_batch else action

    def _observe_frames(self, observations: Mapping[str, object]) -> bool:
        """Add an observation with frames to the history; return whether it is a batch of one.

        Everything is checked now, but frames are encoded only if the next plan needs them, and then at once:
        a control period costs at most one observation and a plan.
        """
        plain = encode_plain(observations, self._spec)
        rows, frames = self._parse_frames(plain, observations, check=True)
        if len(rows) != 1 or plain.ndim > 2:
            raise PolicyInputError(f"select_action takes one observation, got {STATE_KEY} {plain.shape}")
        check_plausible(check_finite_observation(rows[0]), self._spec)

        def encode(pictures: list[np.ndarray]) -> np.ndarray:
            observation: np.ndarray = self._append_codes(rows, pictures)[0]
            return observation

        if len(self._queue) < self._spec.history:
            self._history.add_observation(encode(frames))
        else:  # the driver of a camera may write the next frame into the same array
            self._history.add_observation(partial(encode, [frame.copy() for frame in frames]))
        return plain.ndim == 2

    def session(
        self,
        rate_hz: float = 10.0,
        deadline_s: float = 0.05,
        limits: Literal["from_demos"] | Limits = "from_demos",
        on_fault: OnFault = "hold",
        **settings: Any,
    ) -> Session:
        """Open a control session with this policy; `settings` are further fields of `SessionConfig`.

        with policy.session(rate_hz=10, deadline_s=0.05) as session:
            for obs, t in robot:
                robot.send(session.step(obs, t))
        """
        config = SessionConfig(rate_hz, deadline_s, limits, on_fault, **settings)
        return Session(self, config, calibration=self.calibration)

    def _check_states(self, states: np.ndarray) -> np.ndarray:
        """Return `states` as an array, or raise `PolicyInputError` if shape or values are wrong."""
        wanted = (self._spec.history, self._spec.obs_dim + self._spec.act_dim)
        try:
            with np.errstate(over="ignore"):  # values beyond float32 become infinite
                finite = np.isfinite(to_floats(states).astype(np.float32)).all()
                array: np.ndarray = np.asarray(states)
        except (TypeError, ValueError, OverflowError):
            raise PolicyInputError(
                f"states must be numbers of shape {wanted}, got {describe_value(states)}"
            ) from None
        if array.shape != wanted:
            raise PolicyInputError(f"states must have shape {wanted}, got {array.shape}")
        if not finite:
            raise PolicyInputError(f"states must be finite, got {array.tolist()!s:.200}")
        return array

    def _start_histories(self, obs: np.ndarray) -> list[History]:
        """Return one history per row of `obs`, (obs_dim,) or (B, obs_dim), with its first observation."""
        histories = []
        for row in np.atleast_2d(obs):
            history = self._spec.new_history()
            history.add_observation(check_plausible(row, self._spec))
            histories.append(history)
        return histories


class NumpyPolicy(BasePolicy):
    """A policy that draws its noise with numpy, for machines without torch."""

    @abc.abstractmethod
    def _plan_with(self, history: History, rng: np.random.Generator) -> np.ndarray:
        """Plan a chunk from `history` with noise from `rng`, (chunk, act_dim)."""

    def _reseed(self, seed: int) -> None:
        self._rng = np.random.default_rng(require_seed(seed))

    def _plan_chunk(self, history: History) -> np.ndarray:
        return self._plan_with(history, self._rng)

    def predict_action_chunk(
        self, obs: object, *, seed: int | None = None, generator: np.random.Generator | None = None
    ) -> np.ndarray:
        """Plan from first observations, as at the start of an episode.

        Args:
            obs: One observation (obs_dim,) or a batch (B, obs_dim).
            seed: Seed of the first row; row k uses `seed` + k, as in `plan_from`.
            generator: Random generator to use instead; by default the policy's own.

        Returns:
            Actions (chunk, act_dim), or (B, chunk, act_dim) for a batch.
        """
        if seed is not None and generator is not None:
            raise PolicyInputError("got both a seed and a generator: give one of them")
        given = parse_observations(obs, self._spec, self._encode_plausible)
        histories = self._start_histories(given)
        if seed is None:
            rng = self._rng if generator is None else require_generator(generator, np.random.Generator)
            chunks = [self._plan_with(history, rng) for history in histories]
        else:
            first = require_seed(seed)
            chunks = [
                self.plan_from(history.states(), steps=self._spec.chunk, seed=first + row).actions
                for row, history in enumerate(histories)
            ]
        return np.stack(chunks) if given.ndim == 2 else chunks[0]


def require_generator(given: object, kind: type[G]) -> G:
    """Return a random generator, or raise `PolicyInputError` if it belongs to another library."""
    if not isinstance(given, kind):
        library = kind.__module__.partition(".")[0]
        raise PolicyInputError(f"generator must be a {library} {kind.__name__}, got {describe_value(given)}")
    return given


def require_int(value: Any, name: str) -> int:
    """Return an integer as an int, or raise `PolicyInputError`; floats are never truncated."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise PolicyInputError(f"{name} must be a whole number, got {' '.join(repr(value).split()):.60}")


def require_seed(value: object) -> int:
    """Return a seed as an int, or raise `PolicyInputError` if it is outside 0 to 2**63 - 1."""
    seed = require_int(value, "seed")
    if not 0 <= seed < 2**63:
        raise PolicyInputError(f"seed must be between 0 and 2**63 - 1, got {seed}")
    return seed
