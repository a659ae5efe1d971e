"""Time in a control session: a grid of control periods and policy periods without drift, and its ticks."""

import math
from collections.abc import Callable, Iterator

EPSILON = 1e-6
"""Rounding of a clock, in periods."""
EARLY = 0.25
"""How much before its beginning a control period may be served, in periods."""


class Grid:
    """Control period k begins at t₀ + k / rate, policy period j at t₀ + j / policy rate, k and j from 0."""

    def __init__(self, *, rate_hz: float, policy_hz: float) -> None:
        self.rate_hz, self.policy_hz = rate_hz, policy_hz
        self.origin: float | None = None
        """t₀, seconds; None before the first tick."""
        self.beat: float | None = None
        """When the last control period that was waited for began, seconds."""

    def anchor(self, time: float) -> None:
        """Begin to count here; at the beat's own period where ticks are waited for."""
        self.origin = time
        if self.beat is not None and abs(time - self.beat) * self.rate_hz < 2:
            self.origin = self.beat + math.floor((time - self.beat) * self.rate_hz + EARLY) / self.rate_hz

    def tick(self, time: float) -> int:
        """The control period that `time` lies in, or the next where that is about to begin.

        Loops are late more often than early.
        """
        return math.floor((time - self._t0) * self.rate_hz + EARLY)

    def begun(self, time: float) -> int:
        """The control period that `time` lies in."""
        return math.floor((time - self._t0) * self.rate_hz + EPSILON)

    def instant(self, tick: int) -> float:
        """When a control period begins, seconds."""
        return self._t0 + tick / self.rate_hz

    def period(self, instant: float) -> int:
        """The policy period that an instant lies in."""
        return math.floor((instant - self._t0) * self.policy_hz + EPSILON)

    def period_begins(self, period: int) -> float:
        """When a policy period begins, seconds."""
        return self._t0 + period / self.policy_hz

    def middle(self, instant: float) -> float:
        """Where the middle of the control period from `instant` on lies, in policy periods between the
        middles of those: the middle of policy period j is j.
        """
        return (instant - self._t0) * self.policy_hz + (self.policy_hz / self.rate_hz - 1) / 2

    @property
    def _t0(self) -> float:
        assert self.origin is not None, "anchor the grid first"
        return self.origin


def ticks(grid: Grid, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[float]:
    """Wait for each control period in turn; yields when it began. Periods that have passed are left out.

    Each one is waited for from t₀, not from the last, so that nothing adds up. Where the clock leaps back
    it goes on from there.
    """
    first, tick = clock(), 0
    grid.anchor(first)
    while True:
        now = clock()
        due = first + tick / grid.rate_hz
        if due - now > 2 / grid.rate_hz:
            first, tick, due = now, 0, now
        if now < due:
            sleep(due - now)
        elif (late := math.floor((now - due) * grid.rate_hz)) > 0:
            tick += late
            due = first + tick / grid.rate_hz
        grid.beat = due
        yield due
        tick += 1
