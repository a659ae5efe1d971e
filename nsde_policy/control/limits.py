"""Limits of position, speed, acceleration and, if set, jerk that every command respects.

A limiter moves a command towards a moving target. After every step the command can still stop within the
position limits without exceeding the other limits, so the limits do not conflict beyond rounding, for which
positions are clipped last.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsde_policy.errors import ConfigError
from nsde_policy.planner.calibration import POSITION_MARGIN, Calibration
from nsde_policy.planner.checks import is_finite, to_floats
from nsde_policy.planner.interface import PolicySpec

ZERO = 1e-30
"""Limits of speed, acceleration and jerk up to this number count as zero: their cubes would."""
ROUNDING_ERROR = 1e-9
"""Rounding error of a step, as a fraction of the largest step."""
MANY_STEPS = 1e7
"""Number of steps from which on steps are not counted."""


@dataclass(frozen=True, eq=False)
class Limits:
    """Limits of commands, each (act_dim,)."""

    low: np.ndarray
    high: np.ndarray
    speed: np.ndarray
    """Largest change of a command, units per second."""
    acceleration: np.ndarray
    """Largest change of the speed, units per second squared."""
    jerk: np.ndarray | None = None
    """Largest change of the acceleration, units per second cubed; None for no limit."""

    def __post_init__(self) -> None:
        names = ("low", "high", "speed", "acceleration", *(() if self.jerk is None else ("jerk",)))
        shapes = {name: np.shape(getattr(self, name)) for name in names}
        if len(set(shapes.values())) != 1 or len(shapes["low"]) != 1:
            raise ConfigError(f"limits must be four arrays (act_dim,), or five with jerk, got {shapes}")
        for name in shapes:
            value = np.array(getattr(self, name), dtype=np.float64)
            value.setflags(write=False)
            object.__setattr__(self, name, value)
            if not is_finite(value):
                raise ConfigError(f"limits need a finite {name}, got {value}")
            if name not in ("low", "high") and not (value > ZERO).all():
                raise ConfigError(f"limits need {name} > 0, got {value}")
        if not (self.low < self.high).all():
            raise ConfigError(f"limits need low < high, got {self.low} and {self.high}")

    def with_jerk(self, jerk: object) -> "Limits":
        """Return the same limits with a limit of the jerk, one number or (act_dim,)."""
        given = to_floats(jerk, "jerk_limit")
        return replace(self, jerk=given if given.ndim else np.full_like(self.low, given))

    @classmethod
    def from_demos(cls, spec: PolicySpec, calibration: Calibration, *, policy_hz: float) -> "Limits":
        """Derive limits from demonstrations: the calibrated positions, the 0.999 quantiles of steps as rates.

        Without calibrated positions, they are the demonstrated range with a margin.
        """
        low, high = np.array(spec.low[spec.obs_dim :]), np.array(spec.high[spec.obs_dim :])
        margin = POSITION_MARGIN * (high - low)
        low, high = low - margin, high + margin
        if calibration.action_low:
            low, high = np.array(calibration.action_low), np.array(calibration.action_high)
        step, acceleration = np.array(calibration.step), np.array(calibration.acceleration)
        return cls(low, high, step * policy_hz, acceleration * policy_hz**2)


class Limiter:
    """Command that moves within limits, at rest at first.

    It computes with plain floats, which are faster than arrays of this size.

    Commands in `delta_columns` are changes per period: they rest at zero wherever the robot is, and their
    speed is already the acceleration of the robot, so that only range and speed limit them. Columns in
    `binary` take two values and switch at once.

    Args:
        limits: Limits of the commands.
        start: First position, (act_dim,); it is clipped to the limits.
        delta_columns: Columns that are changes per period.
        binary: Columns that take two values, each with these values.
        longest_step_s: Longest `dt` of `follow` and `hold`; only a jerk limit needs it.
    """

    def __init__(
        self,
        limits: Limits,
        start: np.ndarray,
        *,
        delta_columns: Sequence[int] = (),
        binary: Sequence[tuple[int, float, float]] = (),
        longest_step_s: float = 0.1,
    ) -> None:
        clipped = np.clip(start, limits.low, limits.high)
        rows = np.stack([limits.low, limits.high, limits.speed, limits.acceleration, clipped], axis=1)
        values = {column: pair for column, *pair in binary}
        jerks = [None] * len(rows) if limits.jerk is None else limits.jerk.tolist()
        self._axes: list[_Axis | _JerkAxis] = []
        for column, (row, jerk) in enumerate(zip(rows.tolist(), jerks, strict=True)):
            if column in delta_columns:
                self._axes.append(_DeltaAxis(*row))
            elif column in values:
                low, high = np.clip(values[column], *row[:2]).tolist()
                self._axes.append(_BinaryAxis(low, high, *row[2:]))
            elif jerk is None:
                self._axes.append(_Axis(*row))
            else:
                self._axes.append(_JerkAxis(*row, jerk=jerk, longest_step=longest_step_s))

    @property
    def command(self) -> np.ndarray:
        """The last command, (act_dim,)."""
        return np.array([axis.command for axis in self._axes])

    @property
    def at_rest(self) -> bool:
        """Whether the velocity is zero, and no change is commanded."""
        return all(axis.at_rest for axis in self._axes)

    def brake(self, seconds: float) -> None:
        """Reduce the velocity as in a hold, without moving: for time in which nothing was sent.

        With a jerk limit the velocity becomes zero, that of a robot without a new command.
        """
        for axis in self._axes:
            axis.brake(seconds)

    def follow(self, target: np.ndarray, velocity: np.ndarray, dt: float) -> np.ndarray:
        """Move for `dt` seconds towards a target that moves at `velocity` units per second; both (act_dim,).

        It closes the gap as fast as it can while still matching the target's velocity on arrival.
        """
        for axis, position, speed in zip(self._axes, target.tolist(), velocity.tolist(), strict=True):
            axis.follow(position, speed, dt)
        return self.command

    def hold(self, dt: float) -> np.ndarray:
        """Slow down for `dt` seconds as fast as the acceleration limit allows."""
        for axis in self._axes:
            axis.hold(dt)
        return self.command


@dataclass(slots=True)
class _Axis:
    low: float
    high: float
    speed: float
    acceleration: float
    command: float
    velocity: float = 0.0

    @property
    def at_rest(self) -> bool:
        return not self.velocity

    def follow(self, target: float, speed: float, dt: float) -> None:
        """Move for `dt` seconds towards a target that moves at `speed`."""
        behind = target - speed * dt - self.command
        closing = _max_closing_speed(abs(behind), self.acceleration, dt)
        self.move(speed + math.copysign(closing, behind), dt)

    def hold(self, dt: float) -> None:
        """Slow down for `dt` seconds."""
        self.move(0.0, dt)

    def brake(self, seconds: float) -> None:
        """Reduce the velocity as in a hold, without moving."""
        slower = max(abs(self.velocity) - self.acceleration * seconds, 0.0)
        self.velocity = math.copysign(slower, self.velocity)

    def move(self, wanted: float, dt: float) -> None:
        """Move for `dt` seconds at the allowed velocity closest to the wanted one."""
        up = min(self.speed, _max_safe_speed(self.high - self.command, self.acceleration, dt))
        down = min(self.speed, _max_safe_speed(self.command - self.low, self.acceleration, dt))
        velocity = min(max(wanted, -down), up)
        # The acceleration limit takes precedence for the velocity; the clip below enforces position.
        change = self.acceleration * dt
        self.velocity = min(max(velocity, self.velocity - change), self.velocity + change)
        self.command = min(max(self.command + self.velocity * dt, self.low), self.high)


@dataclass(slots=True)
class _DeltaAxis(_Axis):
    """Command that is a change per period, the velocity of the robot: it rests at zero, always allowed.

    `command` is the change in force in the present period; `PlanFollower` sends it once.
    """

    def __post_init__(self) -> None:
        self.low = min(self.low, 0.0)
        self.high = max(self.high, 0.0)
        self.command = 0.0  # whatever the position is

    @property
    def at_rest(self) -> bool:
        return not self.command

    def follow(self, target: float, speed: float, dt: float) -> None:
        """Change the command to the target, as far as range and speed allow."""
        del speed  # a target's own movement does not matter for the change that it commands now
        reach = self.speed * dt
        target = min(max(target, self.command - reach), self.command + reach)
        self.command = min(max(target, self.low), self.high)

    def hold(self, dt: float) -> None:
        """Reduce the change to zero, at once if no time is known to have passed."""
        self.follow(0.0, 0.0, dt if dt > 0 else math.inf)

    def brake(self, seconds: float) -> None:
        """Reduce the change as in a hold: nothing was sent, so that the robot rested."""
        self.follow(0.0, 0.0, seconds)


@dataclass(slots=True)
class _BinaryAxis(_Axis):
    """Command that takes two values, such as a gripper, and switches at once."""

    def __post_init__(self) -> None:
        self.follow(self.command, 0.0, 0.0)

    def follow(self, target: float, speed: float, dt: float) -> None:
        """Switch to the value nearer to the target."""
        del speed, dt
        self.command = self.high if 2 * target > self.low + self.high else self.low

    def hold(self, dt: float) -> None:
        """Keep the present value."""


class _JerkAxis:
    """Axis with a jerk limit: its velocity is an `_Axis` too, limited in speed and acceleration.

    A step is taken only if the command can stop within the position limits afterwards; the others brake.
    """

    def __init__(
        self,
        low: float,
        high: float,
        speed: float,
        acceleration: float,
        command: float,
        *,
        jerk: float,
        longest_step: float,
    ) -> None:
        self.command = command
        self._low, self._high, self._longest_step = low, high, longest_step
        # One derivative higher: the speed of this axis is an acceleration, its acceleration a jerk.
        self._rate = _Axis(-speed, speed, acceleration, jerk, command=0.0)
        self._target_speed = 0.0

    @property
    def at_rest(self) -> bool:
        return not self._rate.command and not self._rate.velocity

    def follow(self, target: float, speed: float, dt: float) -> None:
        """Move for `dt` seconds towards a target that moves at `speed`."""
        if dt <= 0:
            return
        behind = target - speed * dt - self.command
        closing = min(
            _max_closing_speed(abs(behind), self._rate.speed, dt),
            _max_smooth_speed(abs(behind), self._rate.speed, self._rate.acceleration),
        )
        change, self._target_speed = (speed - self._target_speed) / dt, speed
        rate, up = self._rate, math.copysign(1.0, behind)
        before = rate.command, rate.velocity
        for share in (1.0, 0.75, 0.5, 0.25, 0.0):  # the fastest approach that can still be braked
            wanted = speed + share * up * closing
            rate.follow(min(max(wanted, rate.low), rate.high), change, dt)
            moved = self.command + rate.command * dt
            rest = self._bound_braking(up, speed, change, 0.0) - abs(rate.command - speed) * dt
            arrives = (
                not share or rest <= up * (target - moved) + ROUNDING_ERROR * self._longest_step * rate.high
            )
            if arrives and (
                self._low + self._bound_braking(-1.0) <= moved <= self._high - self._bound_braking(1.0)
            ):
                self.command = min(max(moved, self._low), self._high)
                return
            rate.command, rate.velocity = before
        self.hold(dt)

    def hold(self, dt: float) -> None:
        """Slow down for `dt` seconds; from a command that `follow` left, that ends within the limits."""
        self._target_speed = 0.0
        if dt > 0:
            self._rate.follow(0.0, 0.0, dt)
            self.command = min(max(self.command + self._rate.command * dt, self._low), self._high)

    def brake(self, seconds: float) -> None:
        """Come to rest, unless no time passed."""
        if seconds > 0:
            self._rate.command = self._rate.velocity = self._target_speed = 0.0

    def _bound_braking(
        self, up: float, speed: float = 0.0, change: float = 0.0, longest_step: float | None = None
    ) -> float:
        """Return how far the command moves at most, upwards or downwards, until it moves like a target.

        It is the way of the fastest stop in continuous time (jerk -J, acceleration -A, jerk J), plus the way
        in the longest step: a step moves at the velocity it ends with, and short steps after a long one
        swing back a little.

        Args:
            up: 1 for upwards, -1 for downwards.
            speed: Speed of the target.
            change: Acceleration of the target.
            longest_step: Longest step, seconds; by default that of the limiter.
        """
        limit, jerk = self._rate.speed, self._rate.acceleration
        velocity = up * (self._rate.command - speed)
        acceleration = min(max(up * (self._rate.velocity - change), -limit), limit)
        longest_step = self._longest_step if longest_step is None else longest_step
        margin = longest_step * (abs(velocity) + acceleration * acceleration / (2 * jerk))
        if velocity <= 0:  # it moves forward only if it turns around first
            left = acceleration * acceleration + 2 * jerk * velocity
            if acceleration <= 0 or left <= 0:
                return margin
            velocity, acceleration = 0.0, math.sqrt(left)
        acceleration = max(acceleration, -math.sqrt(2 * jerk * velocity))  # braking harder, it stops sooner
        most = min(math.sqrt(jerk * velocity + acceleration * acceleration / 2), limit)
        ramp = (acceleration + most) / jerk  # seconds until the acceleration is -most
        slower = velocity + (acceleration - most) / 2 * ramp
        way = velocity * ramp + (acceleration / 2 - jerk * ramp / 6) * ramp * ramp
        if most > 0:
            steady = max(slower - most * most / (2 * jerk), 0.0) / most
            way += (slower - most * steady / 2) * steady
        return way + most**3 / (6 * jerk * jerk) + margin


def _max_safe_speed(room: float, acceleration: float, dt: float) -> float:
    """Return the largest speed for one step of `dt` after which stopping within `room` is still possible.

    Solves v dt + v² / 2a = room. A step moves at the velocity it ends with, so braking needs at most v² / 2a,
    for steps of any length.
    """
    step = acceleration * dt
    return math.sqrt(step * step + 2 * acceleration * max(room, 0.0)) - step


def _max_smooth_speed(distance: float, acceleration: float, jerk: float) -> float:
    """Return the speed at which braking from no acceleration, within both limits, takes `distance`.

    From speed v it takes v √(v / J) if the acceleration limit A is not reached, else v (v / A + A / J) / 2.
    """
    speed = math.cbrt(distance * distance * jerk)
    if speed * jerk <= acceleration * acceleration:
        return speed
    half = acceleration * acceleration / (2 * jerk)
    return math.sqrt(half * half + 2 * acceleration * distance) - half


def _max_closing_speed(distance: float, acceleration: float, dt: float) -> float:
    """Return the largest speed for the first of several steps of `dt` that stop exactly at `distance`."""
    unit = acceleration * dt * dt
    if not distance < MANY_STEPS**2 * unit:
        return math.sqrt(2 * acceleration * distance)  # the limit for short steps
    steps = math.floor((math.sqrt(1 + 8 * distance / unit) - 1) / 2)
    return (distance + unit * steps * (steps + 1) / 2) / ((steps + 1) * dt)
