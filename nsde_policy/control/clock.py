"""Timing of a control session: periods on one time grid without drift, and no pauses for garbage."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TIME_TOLERANCE_S = 1e-9
"""Tolerance for rounding errors of time stamps, seconds."""
ROUNDING = 1e-6
"""Tolerance for rounding errors of a clock, in periods."""
EARLY_CALL = 0.25
"""How early a call may come and still count for the next control period, in periods. Late calls get no
tolerance, because loops are late more often than early."""
LARGEST_TIME_S = 1e12
"""Clocks that are further from zero count nanoseconds, or are broken."""


def parse_time(value: Any) -> float:
    """Return `float(value)`, or NaN if it is not a time in seconds, so that every range check fails."""
    try:
        time = float(value)
    except Exception:  # the conversion is code of the object, which may raise anything
        return math.nan
    return time if abs(time) <= LARGEST_TIME_S else math.nan


def read_clock(clock: Callable[[], float]) -> float:
    """Return the time of a clock, seconds, or NaN if it raises or returns something else."""
    try:
        return parse_time(clock())
    except Exception:
        return math.nan


@contextmanager
def freeze_objects() -> Iterator[None]:
    """Collect garbage once and exclude all existing objects from collection until the block ends.

    A full collection visits every object while all threads wait: a tenth of a second with torch loaded.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class TimeGrid:
    """Control period k starts at t₀ + k / rate_hz, policy period j at t₀ + j / policy_hz."""

    def __init__(self, *, rate_hz: float, policy_hz: float) -> None:
        self.rate_hz, self.policy_hz = rate_hz, policy_hz
        self.origin = math.nan
        """t₀ in seconds; NaN before the first step."""
        self._last_tick = -math.inf

    def start(self, time: float) -> None:
        """Set t₀ to `time`, or to the last tick that `ticks` yielded if that was just before."""
        self.origin = time
        if abs(time - self._last_tick) * self.rate_hz < 2:
            passed = math.floor((time - self._last_tick) * self.rate_hz + EARLY_CALL)
            self.origin = self._last_tick + passed / self.rate_hz

    def find_tick(self, time: float, tolerance: float = ROUNDING) -> int:
        """Return the control period that contains `time`, or the next if that starts within the tolerance."""
        return math.floor((time - self.origin) * self.rate_hz + tolerance)

    def tick_time(self, tick: int) -> float:
        """Return the start of a control period, seconds."""
        return self.origin + tick / self.rate_hz

    def find_period(self, time: float) -> int:
        """Return the policy period that contains `time`."""
        return math.floor((time - self.origin) * self.policy_hz + ROUNDING)

    def period_start(self, period: int) -> float:
        """Return the start of a policy period, seconds."""
        return self.origin + period / self.policy_hz

    def midpoint(self, time: float) -> float:
        """Return the middle of the control period that starts at `time`, in policy periods.

        The middle of policy period j is j.
        """
        return (time - self.origin) * self.policy_hz + (self.policy_hz / self.rate_hz - 1) / 2

    def ticks(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[float]:
        """Sleep until each control period and yield its start; skip periods that have already passed.

        Every wake-up time is computed from t₀, so errors do not add up. If the clock jumps back, the grid
        restarts there. While the clock fails (NaN), each period is slept through.
        """
        first, tick = math.nan, 0
        while True:
            now = clock()
            if math.isnan(now):
                sleep(1 / self.rate_hz)
                yield self._last_tick if math.isfinite(self._last_tick) else 0.0
                continue
            if math.isnan(first):
                first = now
                self.start(first)
            due = first + tick / self.rate_hz
            if due - now > 2 / self.rate_hz:
                first, tick, due = now, 0, now
            if now < due:
                sleep(due - now)
            elif (late := math.floor((now - due) * self.rate_hz)) > 0:
                tick += late
                due = first + tick / self.rate_hz
            self._last_tick = due
            yield due
            tick += 1
