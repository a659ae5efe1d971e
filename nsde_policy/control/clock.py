"""Timing of a control session: control periods and policy periods on one time grid, without drift."""

import math
from collections.abc import Callable, Iterator

ROUNDING = 1e-6
"""Tolerance for rounding errors of a clock, in periods."""
EARLY_CALL = 0.25
"""How early a call may come and still count for the next control period, in periods."""


class TimeGrid:
    """Control period k starts at t₀ + k / rate_hz, policy period j at t₀ + j / policy_hz."""

    def __init__(self, *, rate_hz: float, policy_hz: float) -> None:
        self.rate_hz, self.policy_hz = rate_hz, policy_hz
        self.origin: float | None = None
        """t₀ in seconds; None before the first step."""
        self._last_tick: float | None = None

    def start(self, time: float) -> None:
        """Set t₀ to `time`, or to the last tick that `ticks` yielded if that was just before."""
        self.origin = time
        if self._last_tick is not None and abs(time - self._last_tick) * self.rate_hz < 2:
            passed = math.floor((time - self._last_tick) * self.rate_hz + EARLY_CALL)
            self.origin = self._last_tick + passed / self.rate_hz

    def nearest_tick(self, time: float) -> int:
        """Return the control period of `time`, or the next one if that starts within `EARLY_CALL`.

        The tolerance is one-sided because loops are late more often than early.
        """
        return math.floor((time - self._t0) * self.rate_hz + EARLY_CALL)

    def current_tick(self, time: float) -> int:
        """Return the control period that contains `time`."""
        return math.floor((time - self._t0) * self.rate_hz + ROUNDING)

    def tick_time(self, tick: int) -> float:
        """Return the start of a control period, seconds."""
        return self._t0 + tick / self.rate_hz

    def current_period(self, time: float) -> int:
        """Return the policy period that contains `time`."""
        return math.floor((time - self._t0) * self.policy_hz + ROUNDING)

    def period_time(self, period: int) -> float:
        """Return the start of a policy period, seconds."""
        return self._t0 + period / self.policy_hz

    def midpoint(self, time: float) -> float:
        """Return the middle of the control period that starts at `time`, in policy periods.

        The middle of policy period j is j.
        """
        return (time - self._t0) * self.policy_hz + (self.policy_hz / self.rate_hz - 1) / 2

    def ticks(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[float]:
        """Sleep until each control period and yield its start; skip periods that have already passed.

        Every wake-up time is computed from t₀, so errors do not add up. If the clock jumps back, the grid
        restarts there.
        """
        first, tick = clock(), 0
        self.start(first)
        while True:
            now = clock()
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

    @property
    def _t0(self) -> float:
        assert self.origin is not None, "call start() first"
        return self.origin
