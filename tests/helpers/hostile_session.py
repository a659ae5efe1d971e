"""A control session whose planner, worker, callbacks, clock, observations and frames are hostile.

`HostileSession` owns them all. It checks position, speed and acceleration of every command, and that changes
per period are sent once.
"""

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import FaultKind
from nsde_policy.core.spec import CameraSpec
from nsde_policy.errors import PolicyInputError, SessionStoppedError
from nsde_policy.interface.calibration import CameraRange
from nsde_policy.interface.planner import Plan, Planner
from tests.helpers.numpy_planner import CALIBRATION, SPEC

DELTA_RANGE: dict[str, Any] = {"action_low": (5.0, 5.0), "action_high": (12.0, 30.0)}
"""Range of actions that are changes: the demonstrations never rested."""
START = (50.0, 40.0)
CAMERA, STATE = "observation.images.top", "observation.state"
CAMERA_SPEC = replace(
    SPEC,
    obs_dim=5,
    low=(0.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0),
    high=(100.0, 100.0, 6.3, 1.0, 1.0, 100.0, 100.0),
    increment_std=(2.0, 2.0, 0.1, 0.1, 0.1, 2.0, 2.0),
    image_features=2,
    encoder="keypoints",
    cameras=(CameraSpec(CAMERA, height=8, width=6),),
)
"""A policy that also sees one camera, whose frames are encoded as two numbers."""
CAMERA_RANGE = CameraRange(CAMERA, low=(100.0, 20.0, 5.0), high=(150.0, 60.0, 30.0), still=(0.0, 0.0, 0.0))
FRAME = np.random.default_rng(0).integers(60, 190, (8, 6, 3)).astype(np.uint8)


class Evil:
    """Object whose every conversion raises."""

    def _fail(self, *_: object, **__: object) -> Any:
        raise RuntimeError("this object cannot be used")

    __array__ = __float__ = __iter__ = __len__ = __repr__ = __str__ = __getitem__ = __index__ = _fail


class EvilError(Exception):
    """Exception without a message that can be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class EvilPlan(Plan):
    """Plan that cannot be read."""

    def __iter__(self) -> Any:
        raise RuntimeError("no fields")


class Raise:
    """Value that is raised instead of returned."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


RAGGED: Any = [[1.0, 2.0], [3.0]]
VALUES: tuple[Any, ...] = (
    *(1e308, 1.7e308, -1.7e308, 1e39, 10**400, math.nan, math.inf, -math.inf, 1j, True, None, "left", b"x"),
    *(Evil(), object(), {}, {"observation.state": Evil()}, [], [[]], RAGGED, ["1", "2"], [10**400, 0]),
    *([1e308, -1e308], [math.nan, 0.0], [0.0, 0.0], [1e9, -1e9], [[50.0, 40.0]], np.full((4, 2), 1.7e308)),
    *(np.array([None, object()], dtype=object), np.zeros((0, 2)), np.zeros(3), np.ma.masked_all(2)),
    *(Raise(RuntimeError("broken")), Raise(EvilError()), Raise(MemoryError()), Raise(RecursionError())),
)
"""What an observation, a time stamp or a callback may be."""
FRAMES: tuple[Any, ...] = (
    *(*VALUES, FRAME[..., ::-1], FRAME[None], FRAME[:7], FRAME[..., 0], FRAME / 255, np.zeros_like(FRAME)),
    *(np.full_like(FRAME, 255), np.stack([FRAME] * 2), FRAME.astype(object), FRAME.tolist(), FRAME.tobytes()),
)
"""What a frame may be instead of `FRAME`."""
WALK, REENTER, RESET = object(), object(), object()
"""A good plan; a call of the session from inside; a reset of the session from inside."""
PLANS: tuple[Any, ...] = (
    *(*VALUES, REENTER),
    *(Raise(SystemExit(3)), Raise(KeyboardInterrupt()), Raise(GeneratorExit()), Raise(TimeoutError("late"))),
    *(Plan(value) for value in VALUES),
    EvilPlan(np.zeros((4, 2))),
    *(Plan(np.full((n, 2), value)) for n in (1, 2, 9) for value in (50.0, -3e38, 3e38, 1e300)),
    *(Plan(np.zeros((5, 2)), np.full((6, 5), value)) for value in (1.0, 3e38, -3e38, 1e300, math.nan)),
    *(Plan(np.zeros((5, 2)), std=np.full((5, 2), value)) for value in (3e38, -1.0, math.inf)),
    *(Plan(np.zeros((5, 2)), candidates=np.zeros(shape)) for shape in ((0, 6, 5), (3, 6, 5), (6, 5))),
    *(Plan(np.zeros((5, 2)), candidates=value) for value in VALUES),
)
"""What the planner may answer instead of a good plan."""
TIMES: tuple[Any, ...] = (math.nan, math.inf, 1e308, 10**400, "noon", None, 1j, Evil(), Raise(OSError("off")))
"""What the clock may read, apart from times."""
WORKERS = ("inline", "later", "never", "garbage", "raises", "refuses")
SHIFTS = (1.0, 1.0, 1.0, 1.0, 0.0, 0.3, 0.9, 1.4, 3.0, 40.0, -0.01, -0.5, -30.0, 1e-9, -1e-12, 1e10, -1e10)
"""Steps of the clock, in control periods; 1 is honest."""


@dataclass(frozen=True)
class Settings:
    """Settings of a hostile session; `on_fault` indexes the reactions."""

    rate_hz: float = 10.0
    blend: float = 2.0
    plan_ahead: bool = False
    on_fault: int = 0
    starts_at: tuple[float, float] | None = None
    cameras: bool = False
    deltas: tuple[int, ...] = ()
    """Actions that are changes per period; they need the rate of the policy, 10 Hz."""


class HostileSession(Planner):
    """Session in which everything but the session itself is hostile; every command is checked."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now: Any = 100.0
        self.true_time = 100.0
        self.plan: Any = WALK
        self.answer: Any = None
        self.worker = "inline"
        self.spec = CAMERA_SPEC if settings.cameras else SPEC
        self.features: Any = [0.1, -0.1]
        calibration = replace(CALIBRATION, frames=(CAMERA_RANGE,) if settings.cameras else ())
        if settings.deltas:
            calibration = replace(calibration, delta_columns=settings.deltas, **DELTA_RANGE)
        self._deltas = list(settings.deltas)
        self._is_position = np.array([column not in settings.deltas for column in range(2)])
        self._readings: list[float] = []
        self._plan_before: Plan | None = None
        starts_at = None if settings.starts_at is None else np.array(settings.starts_at)
        config = SessionConfig(
            rate_hz=settings.rate_hz,
            blend=settings.blend,
            plan_ahead=settings.plan_ahead,
            on_fault=self._choose_reaction(settings.on_fault),
            initial_command=starts_at,
        )
        self.session = Session(self, config, calibration=calibration, clock=self.read, worker=self)
        if starts_at is not None:
            starts_at[:] = math.nan  # the session has its own copy
        self.limits, self._tick = self.session.resolved.limits, 1 / settings.rate_hz
        self._low, self._high = self.limits.low.copy(), self.limits.high.copy()
        self._low[self._deltas] = np.minimum(self._low, 0.0)[self._deltas]  # zero change is always allowed
        self._sent_changes: set[tuple[int, float]] = set()
        self._rest(settings.starts_at)
        self._read_at, self._stopped, self._is_fresh = -1e12, False, True

    def _rest(self, position: tuple[float, float] | None) -> None:
        self._command = None if position is None else self._clip(position)
        self._velocity = np.zeros(2)
        self._sent_for: float | None = None

    def _clip(self, position: Any) -> np.ndarray:
        """Return where the commands rest if the robot is at a position: changes rest at zero."""
        rest: np.ndarray = np.clip(position, self.limits.low, self.limits.high)
        rest[self._deltas] = 0.0
        return rest

    # --- What the session is given ---

    def read(self) -> Any:
        """Return the time, or something hostile instead."""
        is_time = isinstance(self.now, float) and abs(self.now) <= 1e12
        self._readings.append(self.now if is_time else math.nan)
        return _give(self.now)

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Any:
        """Plan; the arrays of the plan before are overwritten, and so are the states."""
        if self._plan_before is not None:
            for array in self._plan_before:
                if array is not None:
                    array[:] = math.nan
            self._plan_before = None
        if self.plan is REENTER:
            self.session.step([50.0, 40.0, 1.0])
        if self.plan is not WALK:
            return _give(self.plan)
        rng = np.random.default_rng(seed)
        path = np.repeat(states[:1].astype(np.float64), steps + 1, axis=0)
        path[1:, -2:] += np.cumsum(rng.normal(0, 8, (steps, 2)), axis=0)
        states[:] = math.nan
        compared = np.repeat(path[None], 2, axis=0)
        self._plan_before = Plan(path[1:, -2:].copy(), path, np.ones((steps, 2)), compared)
        return self._plan_before

    def encode_frames(self, values: np.ndarray, frames: Any) -> Any:
        """Encode frames; the features may be anything."""
        features = _give(self.features)
        return ([features], None) if isinstance(features, list) else features

    def submit(self, function: Callable[[], Any]) -> Any:
        """Run a job as a worker: now, at a later call, never, or not at all."""
        if self.worker == "raises":
            raise EvilError
        if self.worker == "refuses":
            return None
        return HostileFuture(self, function)

    def close(self) -> None:
        """Close the worker, which has nothing to release."""

    def _choose_reaction(self, index: int) -> Any:
        kinds = dict.fromkeys(FaultKind, self._call_back)
        return ("hold", "stop", self._call_back, kinds | {FaultKind.CALLBACK_ERROR: "stop"}, kinds)[index]

    def _call_back(self, _: object) -> Any:
        if self.answer is REENTER:
            return self.session.step([50.0, 40.0, 1.0])
        if self.answer is RESET:
            return self.session.reset([0.0, 0.0])
        return _give(self.answer)

    # --- What is done with the session ---

    def step(self, obs: Any, t: Any = None) -> None:
        """Ask for the command of a control period, and check it."""
        before = self._command
        plain = obs.get(STATE) if isinstance(obs, dict) else obs
        if before is None and isinstance(plain, list) and len(plain) == 3:
            self._command = self._clip(plain[:2])  # where the robot is
        self._check(lambda: self.session.step(obs, t), is_known=before is not None)

    def reset(self, position: tuple[float, float] | None = None) -> None:
        """Reset the session, with or without the position of the robot."""
        self._readings.clear()
        self.session.reset(position)
        self._stopped, self._is_fresh = False, True
        if position is not None:
            self._rest(position)

    def _check(self, call: Callable[[], np.ndarray], *, is_known: bool) -> None:
        self._readings.clear()
        try:
            command = call()
        except SessionStoppedError:
            assert self.settings.on_fault in (1, 3), "a session without `stop` stopped"
            self._stopped = True
            self._command = self._command if is_known else None
            return
        except PolicyInputError:
            assert not is_known, "a session with a command raised an error"
            assert not self._stopped, "a stopped session raised another error"
            self._command = None
            return
        assert not self._stopped, "a stopped session sent a command"
        self._check_command(command)
        self._vandalize(command)

    def _check_command(self, command: np.ndarray) -> None:
        assert command.shape == (2,)
        assert ((self._low <= command) & (command <= self._high)).all(), f"{command} is outside the limits"
        now, last = self._readings[0], self.session.last
        elapsed = self._measure_elapsed(now)
        dt = min(elapsed, self._tick)
        before = np.zeros(2) if self._command is None else self._command
        if self._command is not None:
            self._check_rates(command - before, dt, elapsed)
        self._command = command.copy()
        if self._deltas:
            self._check_changes(before, dt, elapsed)
        if not math.isnan(now):
            done = self._readings[-1]
            self._read_at, self._is_fresh = done if done >= now else now, False
            self._sent_for = last.time if self._sent_for is None else max(self._sent_for, last.time)

    def _measure_elapsed(self, now: float) -> float:
        """Return how long the command may have moved: the time between commands by the session's clock."""
        if math.isnan(now):
            return 0.0
        if self._sent_for is None:
            return self._tick
        if now < self._read_at - (0.0 if self._is_fresh else 1e-9):
            self._sent_for = now + max(self._sent_for - self._read_at, 0.0)
        elapsed = self.session.last.time - self._sent_for
        return elapsed if elapsed > 1e-6 * self._tick else 0.0

    def _check_rates(self, move: np.ndarray, dt: float, elapsed: float) -> None:
        """Check speed and acceleration of positions, but for rounding errors of commands and large times."""
        assert ((np.abs(move) <= self.limits.speed * dt + 1e-9) | ~self._is_position).all(), f"{move}, {dt} s"
        if dt > 0:
            velocity, before = move / dt, self._velocity
            rounding = (1e-12 + self.limits.speed * 4 * np.spacing(abs(self._read_at))) / dt
            most = self.limits.acceleration * elapsed * (1 + 1e-6) + 2 * rounding
            within = (np.abs(velocity - before) <= most) | ~self._is_position
            assert within.all(), f"velocity {velocity} in {dt} s after {before}, {elapsed} s before"
            self._velocity = velocity

    def _check_changes(self, before: np.ndarray, dt: float, elapsed: float) -> None:
        """Check that the robot moves by each planned change once, and brakes within the limits.

        Args:
            before: Change in force so far; a command of the same period leaves it in force unless it holds.
            dt: Time for which the command moves, seconds.
            elapsed: Time since the last command, seconds.
        """
        last, changes, reach = self.session.last, self._command, self.limits.speed * self._tick
        moved = changes[self._deltas]
        if elapsed < 0.7499 * self._tick:
            assert not moved.any(), f"{moved} was sent {elapsed} s after the change before"
            if last.source == "plan":
                changes[self._deltas] = before[self._deltas]
        elif dt > 0.7501 * self._tick:
            skipped = self.limits.speed * (elapsed - self._tick) if elapsed > 1.49 * self._tick else 0.0
            rest = np.sign(before) * np.maximum(np.abs(before) - skipped, 0.0)
            off = np.maximum(np.minimum(before, rest) - changes, changes - np.maximum(before, rest))
            assert (off <= reach + 1e-6)[self._deltas].all(), f"{moved} after {before[self._deltas]}"
        if last.source == "plan" and moved.any() and abs(last.time) < 1e8:  # else periods are inexact
            key = last.plan, self.session._grid.find_period(last.time)
            assert key not in self._sent_changes, f"{moved} of plan {last.plan} was sent again"
            self._sent_changes.add(key)

    def _vandalize(self, command: np.ndarray) -> None:
        """Overwrite everything that the session gave out."""
        command[:] = math.nan
        last = self.session.last
        for array in (last.action, last.sigma, self.limits.low, self.limits.high):
            if array.flags.writeable:
                array[:] = math.nan


class HostileFuture(Future[Any]):
    """Future that is ready at once, a few polls later, never, or holds garbage."""

    def __init__(self, owner: HostileSession, function: Callable[[], Any]) -> None:
        super().__init__()
        self._owner, self._function, self._polls = owner, function, 0

    def result(self, timeout: float | None = None) -> Any:
        """Return the result of the job, or what the owner wants instead."""
        self._polls += 1
        worker = self._owner.worker
        if worker == "garbage":
            return self._owner.answer
        if worker == "never" or (worker == "later" and self._polls < 4):
            raise TimeoutError
        return self._function()


def _give(value: Any) -> Any:
    if isinstance(value, Raise):
        raise value.error
    return value
