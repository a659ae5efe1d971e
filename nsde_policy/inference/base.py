"""The base class of all policies: keep a history, select actions, open a control session.

It needs numpy only. Subclasses plan with torch (`Policy`), an exported graph (`RuntimePolicy`) or a server.
"""

import abc
import logging
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Generic, Literal, SupportsIndex, TypeVar

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import OnFault
from nsde_policy.control.limits import Limits
from nsde_policy.errors import PolicyInputError
from nsde_policy.planner.calibration import Calibration
from nsde_policy.planner.checks import check_array, hold_action, round_binary
from nsde_policy.planner.interface import History, Plan, PolicySpec
from nsde_policy.planner.observation import (
    Observation,
    ObservationMonitor,
    convert_observation,
    find_lost_camera,
    find_non_finite,
    parse_frames,
)

logger = logging.getLogger(__name__)

Generator = TypeVar("Generator")
"""Random generator of a policy: that of torch, or that of numpy."""


class BasePolicy(abc.ABC, Generic[Generator]):
    """A `Planner` that returns one action per control period.

    It plans `chunk` actions at once and plans again when all of them were executed:

        period      0 1 2 3 4 5 6 7 | 8 9 …
        observed    x x x x x x x x | x
        planned     x x x x x x x x   x x x x x x x x
        executed    x x x x x x x x | x x …
    """

    def __init__(self, spec: PolicySpec, calibration: Calibration | None, *, seed: int = 0) -> None:
        self._spec = spec
        self.calibration: Calibration = (calibration or Calibration.from_spec(spec)).check(spec)
        """Limits and statistics measured on the demonstrations, used by a control session."""
        self.outside: str | None = None
        """Why the last observation is far outside the demonstrated range; None if it is not."""
        self._start_episode()
        self._generator = self._make_generator(require_seed(seed))

    @abc.abstractmethod
    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """Plan from states (history, obs_dim + act_dim), newest first; the same seed gives the same plan."""

    @abc.abstractmethod
    def _draw_chunks(self, histories: Sequence[History], generator: Generator) -> list[np.ndarray]:
        """Plan a chunk from each history with noise from `generator`, each (chunk, act_dim)."""

    @abc.abstractmethod
    def _make_generator(self, seed: int) -> Generator:
        """Return a random generator."""

    def encode(self, observations: Mapping[str, object]) -> np.ndarray:
        """Encode named observations as the vector that the policy was trained on, (obs_dim,).

        Args:
            observations: `observation.state` and a frame of each camera of `spec.cameras`, of which one may
                be missing if `spec.survives_lost_camera`; a batch of them, with one more axis, gives
                (B, obs_dim).

        Raises:
            PolicyInputError: If a part is missing, or has the wrong shape or type.
        """
        return self._convert(observations, plausible=False)

    def encode_and_see(self, observations: Mapping[str, object]) -> tuple[np.ndarray, float | None]:
        """Encode as `encode`, and return also how much of what the policy relies on is visible.

        It is the share of the features of all frames, from 0 to 1, that are likely to be right; None if the
        policy does not report it.
        """
        encoded, visible = self._convert_and_see(observations, plausible=False)
        return encoded, None if visible is None else float(visible.mean())

    def _convert(self, obs: object, *, plausible: bool) -> np.ndarray:
        return self._convert_and_see(obs, plausible=plausible)[0]

    def _convert_and_see(self, obs: object, *, plausible: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Convert observations in any form that `observation.py` accepts, (obs_dim,) or (n, obs_dim).

        Named ones with frames are encoded, and their visible share, (n,), is returned if it is known.
        If `plausible`, black, uniform and noisy frames are refused.
        """
        plain, cameras = convert_observation(obs, self._spec), self._spec.cameras
        if (reason := find_non_finite(plain)) is not None:
            raise PolicyInputError(reason)
        if not cameras or not isinstance(obs, Mapping):
            return plain, None
        rows, seen = np.atleast_2d(plain), self.calibration.frames if plausible else ()
        lost = find_lost_camera(obs, self._spec)
        if lost is not None:  # encode any frame, so that encoders need not know
            camera = cameras[lost]
            obs = {**obs, camera.name: np.zeros((*plain.shape[:-1], *camera.shape), np.uint8)}
            seen = tuple(each for each in seen if each.camera != camera.name)
        frames = parse_frames(obs, cameras, rows=len(plain) if plain.ndim == 2 else None, seen=seen)
        features, visible = self._encode_frames(rows, frames)
        if not np.isfinite(features).all():
            raise PolicyInputError(
                "the encoder returned features of camera frames that are not finite; its training diverged "
                "or its weights are damaged: restore the run, or train it again"
            )
        encoded = np.concatenate([rows, features], axis=1)
        if lost is not None:
            columns, middle = self._spec.find_lost_features(lost, len(cameras))
            encoded[:, columns] = middle
            visible = None if visible is None else np.minimum(visible, 1 - 1 / len(cameras))
        return encoded.reshape(*plain.shape[:-1], -1), visible

    def _encode_frames(
        self, values: np.ndarray, frames: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Encode frames of all cameras, each (n, height, width, 3) uint8; return features and visible share.

        The low-dimensional observations of the same moments are `values`, (n, plain_dim). Features are
        (n, features); the visible share is (n,), or None if it is not known.
        """
        raise PolicyInputError(f"{type(self).__name__} cannot encode camera frames")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._list_facts())})"

    def _repr_html_(self) -> str:
        """Return what `repr` does, as a list for notebooks."""
        facts = "".join(f"<li>{escape(fact)}</li>" for fact in self._list_facts())
        return f"<b>{type(self).__name__}</b><ul>{facts}</ul>"

    def _list_facts(self) -> list[str]:
        spec, rate_hz = self._spec, self.calibration.rate_hz
        sizes = ((each.name.rpartition(".")[2], each.width, each.height) for each in spec.cameras)
        cameras = ", ".join(f"{name} {width}×{height}" for name, width, height in sizes)
        return [
            spec.method,
            f"{spec.plain_dim} → {spec.act_dim}",
            f"{rate_hz:g} Hz" if rate_hz else "unknown rate",
            f"chunk {spec.chunk}",
            *([f"cameras {cameras}"] if cameras else []),
        ]

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
        self._start_episode()
        if seed is not None:
            self._generator = self._make_generator(require_seed(seed))

    def _start_episode(self) -> None:
        self._queue: deque[np.ndarray] = deque()
        self._history = self._spec.new_history()
        self._monitor, self._period, self._has_warned = ObservationMonitor(self._spec), 0, False

    def select_action(self, obs: object) -> np.ndarray:
        """Return the action for this control period, (act_dim,).

        An observation far outside the demonstrated range is used; `outside` says why it is, and the first one
        of an episode is logged as a warning. If it got there by a jump that no demonstration comes near, the
        last action is returned again, for at most two periods, as a session holds after a fault.

        Args:
            obs: One observation in any form that `observation.py` accepts. A batch of one, (1, obs_dim),
                gives a batch of one action, (1, act_dim).

        Raises:
            PolicyInputError: If the observation has the wrong shape, is not finite or has an implausible
                frame, or if it is the first one and all its values are far outside the demonstrated range.
        """
        given = self._convert(obs, plausible=True)
        is_batch = given.ndim == 2
        if is_batch and len(given) != 1:
            raise PolicyInputError(f"select_action takes one observation, got {len(given)}")
        row = given[0] if is_batch else given
        compared = self._monitor.check(row, self._period)
        self._period += 1
        self._report(compared)
        action = self._hold() if compared.is_jump else self._follow_plan(row)
        self._history.add_action(action)
        sent = round_binary(action, self._spec)
        return sent[None] if is_batch else sent

    def _report(self, obs: Observation) -> None:
        """Keep why an observation is far outside the demonstrations, and warn of the first of an episode."""
        self.outside = obs.outside
        if self.outside is not None and not self._has_warned:
            logger.warning("an observation is far outside the demonstrations: %s", self.outside)
            self._has_warned = True

    def _follow_plan(self, row: np.ndarray) -> np.ndarray:
        """Return the next action of the plan; plan again if there is none."""
        self._history.add_observation(row)
        if not self._queue:
            self._queue.extend(*self._draw_chunks([self._history], self._generator))
        return self._queue.popleft()

    def _hold(self) -> np.ndarray:
        """Drop the plan and all observations, and return the last action; changes per period rest at zero."""
        self._queue.clear()
        self._history.forget_observations()
        return hold_action(self._history.last_action, self.calibration.delta_columns)

    def predict_action_chunk(self, obs: object, *, generator: Generator | None = None) -> np.ndarray:
        """Plan from first observations, as at the start of an episode.

        Returns:
            Actions (chunk, act_dim) for one observation, (B, chunk, act_dim) for a batch (B, obs_dim).
        """
        given = self._convert(obs, plausible=True)
        histories = []
        for row in np.atleast_2d(given):
            histories.append(self._spec.new_history())
            self._report(ObservationMonitor(self._spec).check(row, 0))
            histories[-1].add_observation(row)
        drawn = self._draw_chunks(histories, self._generator if generator is None else generator)
        chunks = round_binary(np.stack(drawn), self._spec)
        return chunks if given.ndim == 2 else chunks[0]

    def session(
        self,
        rate_hz: float | None = None,
        deadline_s: float = 0.05,
        limits: Literal["from_demos"] | Limits = "from_demos",
        on_fault: OnFault = "hold",
        **settings: Any,
    ) -> Session:
        """Open a control session with this policy; `settings` are further fields of `SessionConfig`.

        with policy.session(rate_hz=10, deadline_s=0.05) as session:
            for obs, t in robot:
                robot.send(session.step(obs, t))

        Without `rate_hz`, the session runs at the rate of the demonstrations, or 10 Hz if it is unknown.
        """
        rate_hz = rate_hz or self.calibration.rate_hz or SessionConfig.rate_hz
        config = SessionConfig(rate_hz, deadline_s, limits, on_fault, **settings)
        return Session(self, config, calibration=self.calibration)

    def _check_states(self, states: object) -> np.ndarray:
        """Return `states` as float64, or raise `PolicyInputError` if shape or values are wrong."""
        return check_array(states, (self._spec.history, self._spec.dim), "states")


def require_int(value: SupportsIndex, name: str) -> int:
    """Return an integer as an int, or raise `PolicyInputError`; floats are never truncated."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise PolicyInputError(f"{name} must be a whole number, got {' '.join(repr(value).split()):.60}")


def require_seed(value: SupportsIndex) -> int:
    """Return a seed as an int, or raise `PolicyInputError` if it is outside 0 to 2**63 - 1."""
    seed = require_int(value, "seed")
    if not 0 <= seed < 2**63:
        raise PolicyInputError(f"seed must be between 0 and 2**63 - 1, got {seed}")
    return seed
