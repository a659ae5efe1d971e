"""Where commands may be, how fast they may move and how fast that may change: kept, whatever is asked for.

A limiter moves a command towards a moving target. After every step it can still come to rest inside the
limits of position without breaking that of acceleration, so that no limit ever has to give way to another.
"""

from dataclasses import dataclass

import numpy as np

from nsde_policy.calibration import Calibration
from nsde_policy.errors import ConfigError
from nsde_policy.planner import PolicySpec

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
    """A command that moves within limits; it starts at rest."""

    def __init__(self, limits: Limits, start: np.ndarray) -> None:
        self.limits = limits
        self.command = np.clip(start, limits.low, limits.high)
        """The last command, (act_dim,)."""
        self.velocity = np.zeros_like(self.command)
        """Its rate of change, units per second, (act_dim,)."""

    @property
    def at_rest(self) -> bool:
        """Whether the command stands still."""
        return not self.velocity.any()

    def rest(self, seconds: float) -> None:
        """Let time pass in which nothing was sent: the speed falls as in a hold."""
        brake = self.limits.acceleration * seconds
        self.velocity = np.sign(self.velocity) * np.maximum(np.abs(self.velocity) - brake, 0.0)

    def follow(self, target: np.ndarray, slope: np.ndarray, dt: float) -> np.ndarray:
        """Move for `dt` seconds towards a target that moves at `slope` units per second; both (act_dim,).

        It catches up with the target as fast as lets it end at the target's speed when it is there.
        """
        behind = target - slope * dt - self.command
        closing = np.sign(behind) * _fastest_to_stop(np.abs(behind), self.limits.acceleration, dt)
        return self._move(slope + closing, dt)

    def hold(self, dt: float) -> np.ndarray:
        """Come to rest, as fast as the limit of acceleration lets it."""
        return self._move(np.zeros_like(self.velocity), dt)

    def _move(self, wanted: np.ndarray, dt: float) -> np.ndarray:
        limits = self.limits
        change = limits.acceleration * dt
        up = np.minimum(limits.speed, _safe(limits.high - self.command, limits.acceleration, dt))
        down = np.minimum(limits.speed, _safe(self.command - limits.low, limits.acceleration, dt))
        # The acceleration comes last: where rounding makes the two disagree by a hair, it is kept, and the
        # clip below keeps the position.
        velocity = np.minimum(np.maximum(wanted, -down), up)
        velocity = np.minimum(np.maximum(velocity, self.velocity - change), self.velocity + change)
        self.velocity = velocity
        self.command = np.clip(self.command + velocity * dt, limits.low, limits.high)
        return self.command.copy()


def _safe(room: np.ndarray, acceleration: np.ndarray, dt: float) -> np.ndarray:
    """Largest speed for one step of `dt` after which rest is still possible within `room`.

    v dt + v² / 2a = room; steps of any other length that follow need no more room than that.
    """
    step = acceleration * dt
    speed: np.ndarray = np.sqrt(step * step + 2 * acceleration * np.maximum(room, 0.0)) - step
    return speed


def _fastest_to_stop(distance: np.ndarray, acceleration: np.ndarray, dt: float) -> np.ndarray:
    """Largest speed from which steps of `dt`, the first one at that speed, end at `distance` exactly."""
    unit = acceleration * dt * dt
    steps = np.floor((np.sqrt(1 + 8 * distance / unit) - 1) / 2)
    speed: np.ndarray = (distance + unit * steps * (steps + 1) / 2) / ((steps + 1) * dt)
    return speed
