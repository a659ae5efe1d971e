"""The base class of all policies: keep a history, select actions, open a control session.

It needs numpy only. Subclasses plan with torch (`Policy`), an exported graph (`RuntimePolicy`) or a server.
"""

import logging
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from nsde_policy.bounds import MAX_INTEGER
from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import OnFault
from nsde_policy.control.limits import Limits
from nsde_policy.errors import PolicyInputError
from nsde_policy.interface.calibration import Calibration, CameraRange
from nsde_policy.interface.observation import (
    Observation,
    ObservationMonitor,
    encode_observation,
    parse_observation,
)
from nsde_policy.interface.planner import Planner, PolicySpec, check_array, hold_action, round_binary

logger = logging.getLogger(__name__)


class BasePolicy(Planner):
    """A planner that returns one action per policy period.

    It plans `chunk` actions at once and plans again when all of them were executed:

        period      0 1 2 3 4 5 6 7 | 8 9 …
        observed    x x x x x x x x | x
        planned     x x x x x x x x   x x x x x x x x
        executed    x x x x x x x x | x x …
    """

    def __init__(self, spec: PolicySpec, calibration: Calibration | None, *, seed: int = 0) -> None:
        self.spec = spec
        self.calibration: Calibration = (calibration or Calibration.from_spec(spec)).check(spec)
        """Limits and statistics measured on the demonstrations, used by a control session."""
        self.outside: str | None = None
        """Why the last observation is far outside the demonstrated range; None if it is not."""
        self.reset(seed=seed)

    def reset(self, *, seed: int | None = None) -> None:
        """Start a new episode: clear the history and the planned actions.

        Call it whenever the robot or the scene was moved by hand. With a `seed`, the actions are
        reproducible.
        """
        self._queue: deque[np.ndarray] = deque()
        self._history = self.spec.new_history()
        self._monitor, self._period, self._has_warned = ObservationMonitor(self.spec), 0, False
        if seed is not None:
            self._seed(require_seed(seed))

    def select_action(self, obs: object) -> np.ndarray:
        """Return the action for this policy period, (act_dim,).

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
        values = self._convert(obs, self.calibration.frames)
        is_batch = values.ndim == 2
        if is_batch and len(values) != 1:
            raise PolicyInputError(f"select_action takes one observation, got {len(values)}")
        row = values[0] if is_batch else values
        observation = self._monitor.check(row, self._period)
        self._period += 1
        self._report(observation)
        action = self._hold() if observation.is_jump else self._follow_plan(row)
        self._history.add_action(action)
        command = round_binary(action, self.spec)
        return command[None] if is_batch else command

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

    def encode(self, observations: Mapping[str, object]) -> np.ndarray:
        """Encode named observations as the vector that the policy was trained on, (obs_dim,).

        Args:
            observations: `observation.state` and a frame of each camera of `spec.cameras`, of which one may
                be missing if `spec.survives_lost_camera`; a batch of them, with one more axis, gives
                (B, obs_dim).

        Raises:
            PolicyInputError: If a part is missing, or has the wrong shape or type.
        """
        return self._convert(observations)

    def __repr__(self) -> str:
        spec, rate_hz = self.spec, self.calibration.rate_hz
        rate = f"{rate_hz:g} Hz" if rate_hz else "unknown rate"
        cameras = f", {len(spec.cameras)} cameras" if spec.cameras else ""
        sizes = f"{spec.plain_dim} → {spec.act_dim}"
        return f"{type(self).__name__}({spec.method}, {sizes}, {rate}, chunk {spec.chunk}{cameras})"

    def _seed(self, seed: int) -> None:
        """Restart the random numbers of `select_action`."""
        self._rng = np.random.default_rng(seed)

    def _plan_chunk(self) -> np.ndarray:
        """Plan from the history with new random numbers, (chunk, act_dim)."""
        seed = int(self._rng.integers(MAX_INTEGER))
        return self.plan_from(self._history.states(), steps=self.spec.chunk, seed=seed).actions

    def _convert(self, obs: object, ranges: Sequence[CameraRange] = ()) -> np.ndarray:
        """Convert observations in any form that `observation.py` accepts, (obs_dim,) or (n, obs_dim).

        Named ones with frames are encoded. With the `ranges` of the training frames, black, uniform and noisy
        frames are refused.
        """
        values, frames = parse_observation(obs, self.spec, ranges=ranges)
        if not frames:
            return values
        encoded, _ = encode_observation(self, np.atleast_2d(values), frames)
        return encoded.reshape(*values.shape[:-1], -1)

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
            self._queue.extend(self._plan_chunk())
        return self._queue.popleft()

    def _hold(self) -> np.ndarray:
        """Drop the plan and all observations, and return the last action; changes per period rest at zero."""
        self._queue.clear()
        self._history.forget_observations()
        return hold_action(self._history.last_action, self.calibration.delta_columns)

    def _check_states(self, states: object) -> np.ndarray:
        """Return `states` as float64, or raise `PolicyInputError` if shape or values are wrong."""
        return check_array(states, (self.spec.history, self.spec.dim), "states")


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
    if not 0 <= seed <= MAX_INTEGER:
        raise PolicyInputError(f"seed must be between 0 and 2**63 - 1, got {seed}")
    return seed
