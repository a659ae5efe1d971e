"""Limits of position, speed and acceleration that every command respects.

A limiter moves a command towards a moving target. After every step the command can still stop within the
position limits without exceeding the other limits, so the limits do not conflict beyond rounding, for which
positions are clipped last.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsde_policy.errors import ConfigError
from nsde_policy.interface.calibration import POSITION_MARGIN, Calibration
from nsde_policy.interface.planner import PolicySpec, is_finite

ZERO = 1e-30
"""Limits of speed and acceleration up to this number count as zero."""
MANY_STEPS = 1e7


@dataclass(frozen=True, eq=False)
class Limits:
    """Limits of commands, each (act_dim,)."""

    low: np.ndarray
    high: np.ndarray
    speed: np.ndarray
    """Largest change of a command, units per second."""
    acceleration: np.ndarray
    """Largest change of the speed, units per second squared."""

    def __post_init__(self) -> None:
        shapes = {name: np.shape(value) for name, value in vars(self).items()}
        if len(set(shapes.values())) != 1 or len(shapes["low"]) != 1:
            raise ConfigError(f"limits must be four arrays (act_dim,), got {shapes}")
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
    """Command that moves within limits, at rest at first, from a `start` (act_dim,) that is clipped to them.

    It computes with plain floats, which are faster than arrays of this size.

    Commands in `delta_columns` are changes per period: they rest at zero wherever the robot is, and their
    speed is already the acceleration of the robot, so that only range and speed limit them. Columns in
    `binary` take the two values that are given with them, and switch at once.
    """

    def __init__(
        self,
        limits: Limits,
        start: np.ndarray,
        *,
        delta_columns: Sequence[int] = (),
        binary: Sequence[tuple[int, float, float]] = (),
    ) -> None:
        clipped = np.clip(start, limits.low, limits.high)
        rows = np.stack([limits.low, limits.high, limits.speed, limits.acceleration, clipped], axis=1)
        values = {column: pair for column, *pair in binary}
        self._axes: list[_Axis] = []
        for column, row in enumerate(rows.tolist()):
            if column in delta_columns:
                self._axes.append(_DeltaAxis(*row))
            elif column in values:
                low, high = np.clip(values[column], *row[:2]).tolist()
                self._axes.append(_BinaryAxis(low, high, *row[2:]))
            else:
                self._axes.append(_Axis(*row))

    @property
    def command(self) -> np.ndarray:
        """The last command, (act_dim,)."""
        return np.array([axis.command for axis in self._axes])

    @property
    def at_rest(self) -> bool:
        """Whether the velocity is zero, and no change is commanded."""
        return all(axis.at_rest for axis in self._axes)

    def decay_velocity(self, seconds: float) -> None:
        """Reduce the velocity as `brake` does, without moving: for time in which nothing was sent."""
        for axis in self._axes:
            axis.decay_velocity(seconds)

    def follow(self, target: np.ndarray, velocity: np.ndarray, dt: float) -> np.ndarray:
        """Move for `dt` seconds towards a target that moves at `velocity` units per second; both (act_dim,).

        It closes the gap as fast as it can while still matching the target's velocity on arrival.
        """
        for axis, position, speed in zip(self._axes, target.tolist(), velocity.tolist(), strict=True):
            axis.follow(position, speed, dt)
        return self.command

    def brake(self, dt: float) -> np.ndarray:
        """Slow down for `dt` seconds as fast as the acceleration limit allows, then keep the command."""
        for axis in self._axes:
            axis.brake(dt)
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

    def brake(self, dt: float) -> None:
        """Slow down for `dt` seconds."""
        self.move(0.0, dt)

    def decay_velocity(self, seconds: float) -> None:
        """Reduce the velocity as `brake` does, without moving."""
        slower = max(abs(self.velocity) - self.acceleration * seconds, 0.0)
        self.velocity = math.copysign(slower, self.velocity)

    def move(self, target: float, dt: float) -> None:
        """Move for `dt` seconds at the allowed velocity closest to the wanted one."""
        up = min(self.speed, _max_safe_speed(self.high - self.command, self.acceleration, dt))
        down = min(self.speed, _max_safe_speed(self.command - self.low, self.acceleration, dt))
        velocity = min(max(target, -down), up)
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

    def brake(self, dt: float) -> None:
        """Reduce the change to zero, at once if no time is known to have passed."""
        self.follow(0.0, 0.0, dt if dt > 0 else math.inf)

    def decay_velocity(self, seconds: float) -> None:
        """Reduce the change as `brake` does: nothing was sent, so that the robot rested."""
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

    def brake(self, dt: float) -> None:
        """Keep the present value."""


def _max_safe_speed(room: float, acceleration: float, dt: float) -> float:
    """Return the largest speed for one step of `dt` after which stopping within `room` is still possible.

    Solves v dt + v² / 2a = room. A step moves at the velocity it ends with, so braking needs at most v² / 2a,
    for steps of any length.
    """
    step = acceleration * dt
    return math.sqrt(step * step + 2 * acceleration * max(room, 0.0)) - step


def _max_closing_speed(distance: float, acceleration: float, dt: float) -> float:
    """Return the largest speed for the first of several steps of `dt` that stop exactly at `distance`."""
    unit = acceleration * dt * dt
    if not distance < MANY_STEPS**2 * unit:
        return math.sqrt(2 * acceleration * distance)  # the limit for short steps
    steps = math.floor((math.sqrt(1 + 8 * distance / unit) - 1) / 2)
    return (distance + unit * steps * (steps + 1) / 2) / ((steps + 1) * dt)
