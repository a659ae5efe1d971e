"""Where commands may be, how fast they may move and how fast that may change: kept, whatever is asked for.

A limiter moves a command towards a moving target. After every step it can still come to rest inside the
limits of position without breaking that of acceleration, so that no limit ever has to give way to another.
"""

import math
from dataclasses import dataclass

import numpy as np

from nsde_policy.errors import ConfigError
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import PolicySpec

MARGIN = 0.05
"""Widening of the demonstrations' positions on either side, in ranges."""


@dataclass(frozen=True, eq=False)
class Limits:
    """What every command keeps to; all (act_dim,), per second."""

    low: np.ndarray
    high: np.ndarray
    speed: np.ndarray
    """Largest change of a command, units per second."""
    acceleration: np.ndarray
    """Largest change of that, units per second squared."""

    def __post_init__(self) -> None:
        shapes = {name: np.shape(getattr(self, name)) for name in ("low", "high", "speed", "acceleration")}
        if len(set(shapes.values())) != 1 or len(shapes["low"]) != 1:
            raise ConfigError(f"limits must be four arrays (act_dim,), got {shapes}")
        for name in shapes:
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        if not (
            np.isfinite(self.low).all() and np.isfinite(self.high).all() and (self.low < self.high).all()
        ):
            raise ConfigError(f"limits need finite low < high, got {self.low} and {self.high}")
        for name in ("speed", "acceleration"):
            if not (getattr(self, name) > 0).all() or not np.isfinite(getattr(self, name)).all():
                raise ConfigError(f"limits need a finite {name} > 0, got {getattr(self, name)}")

    @classmethod
    def from_demos(cls, spec: PolicySpec, calibration: Calibration, *, policy_hz: float) -> "Limits":
        """The demonstrations' positions, a little widened; their steps and accelerations, as rates."""
        low, high = np.array(spec.low[spec.obs_dim :]), np.array(spec.high[spec.obs_dim :])
        wider = MARGIN * (high - low)
        step, acceleration = np.array(calibration.step), np.array(calibration.acceleration)
        return cls(low - wider, high + wider, step * policy_hz, acceleration * policy_hz**2)


class Limiter:
    """A command that moves within limits; it starts at rest. Plain floats: arrays this short are slower."""

    def __init__(self, limits: Limits, start: np.ndarray) -> None:
        self.limits = limits
        self._axes = [
            _Axis(low, high, speed, acceleration, command=min(max(at, low), high))
            for low, high, speed, acceleration, at in zip(
                limits.low.tolist(),
                limits.high.tolist(),
                limits.speed.tolist(),
                limits.acceleration.tolist(),
                np.asarray(start, dtype=np.float64).tolist(),
                strict=True,
            )
        ]

    @property
    def command(self) -> np.ndarray:
        """The last command, (act_dim,)."""
        return np.array([axis.command for axis in self._axes])

    @property
    def velocity(self) -> np.ndarray:
        """Its rate of change, units per second, (act_dim,)."""
        return np.array([axis.velocity for axis in self._axes])

    @property
    def at_rest(self) -> bool:
        """Whether the command stands still."""
        return not any(axis.velocity for axis in self._axes)

    def rest(self, seconds: float) -> None:
        """Let time pass in which nothing was sent: the speed falls as in a hold."""
        for axis in self._axes:
            slower = max(abs(axis.velocity) - axis.acceleration * seconds, 0.0)
            axis.velocity = math.copysign(slower, axis.velocity)

    def follow(self, target: np.ndarray, slope: np.ndarray, dt: float) -> np.ndarray:
        """Move for `dt` seconds towards a target that moves at `slope` units per second; both (act_dim,).

        It catches up with the target as fast as lets it end at the target's speed when it is there.
        """
        for axis, wanted, speed in zip(self._axes, target.tolist(), slope.tolist(), strict=True):
            behind = wanted - speed * dt - axis.command
            closing = _fastest_to_stop(abs(behind), axis.acceleration, dt)
            axis.move(speed + math.copysign(closing, behind), dt)
        return self.command

    def hold(self, dt: float) -> np.ndarray:
        """Come to rest, as fast as the limit of acceleration lets it."""
        for axis in self._axes:
            axis.move(0.0, dt)
        return self.command


@dataclass(slots=True)
class _Axis:
    """One number of the command."""

    low: float
    high: float
    speed: float
    acceleration: float
    command: float
    velocity: float = 0.0

    def move(self, wanted: float, dt: float) -> None:
        """Go at the nearest allowed velocity to the one that is wanted, for `dt` seconds."""
        up = min(self.speed, _safe(self.high - self.command, self.acceleration, dt))
        down = min(self.speed, _safe(self.command - self.low, self.acceleration, dt))
        velocity = min(max(wanted, -down), up)
        # The acceleration comes last: where rounding makes the two disagree by a hair, it is kept, and the
        # clip below keeps the position.
        change = self.acceleration * dt
        self.velocity = min(max(velocity, self.velocity - change), self.velocity + change)
        self.command = min(max(self.command + self.velocity * dt, self.low), self.high)


def _safe(room: float, acceleration: float, dt: float) -> float:
    """Largest speed for one step of `dt` after which rest is still possible within `room`.

    v dt + v² / 2a = room; steps of any other length that follow need no more room than that.
    """
    step = acceleration * dt
    return math.sqrt(step * step + 2 * acceleration * max(room, 0.0)) - step


def _fastest_to_stop(distance: float, acceleration: float, dt: float) -> float:
    """Largest speed from which steps of `dt`, the first one at that speed, end at `distance` exactly."""
    unit = acceleration * dt * dt
    steps = math.floor((math.sqrt(1 + 8 * distance / unit) - 1) / 2)
    return (distance + unit * steps * (steps + 1) / 2) / ((steps + 1) * dt)
