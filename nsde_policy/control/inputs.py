"""What comes into a control session, checked: observations, their time stamps, the clock."""

import math
from typing import Any

import numpy as np

from nsde_policy.control.faults import Fault, FaultKind
from nsde_policy.errors import NonFiniteObservationError, PolicyInputError
from nsde_policy.inference.observation import find_implausible, parse_observation
from nsde_policy.inference.spec import PolicySpec

TOLERANCE = 1e-9
"""Rounding of time stamps, seconds."""


class Watch:
    """Looks at every observation and at every reading of the clock; times in seconds."""

    def __init__(self, spec: PolicySpec, *, max_age_s: float, max_gap_s: float, ahead_s: float) -> None:
        self._spec, self._max_age, self._max_gap, self._ahead = spec, max_age_s, max_gap_s, ahead_s
        self.newest: float | None = None
        """Time stamp of the newest observation."""
        self._used: float | None = None
        self._clock: float | None = None

    def reset(self) -> None:
        """Forget every time stamp."""
        self.newest = self._used = self._clock = None

    def clock(self, now: float) -> Fault | None:
        """A leap of the clock since it was last read, if there was one."""
        before, self._clock = self._clock, now
        if before is None or -TOLERANCE <= now - before <= self._max_gap:
            return None
        self.newest = self._used = None
        return Fault(FaultKind.CLOCK_JUMP, now, f"the clock moved by {now - before:+.4g} s")

    def waited(self, now: float) -> None:
        """Note that time passed inside the session, which is no leap of the clock."""
        if self._clock is not None and now >= self._clock:
            self._clock = now

    def observation(
        self, given: Any, time: float, now: float, *, for_a_new_period: bool
    ) -> tuple[np.ndarray | None, list[Fault]]:
        """The observation, (obs_dim,), where it can be used; and everything that is wrong with it."""
        values, faults = self._values(given, now)
        faults += self._time(time, now, for_a_new_period=for_a_new_period)
        return (None, faults) if faults else (values, faults)

    def use(self) -> None:
        """Note that the newest observation was taken in."""
        self._used = self.newest

    def age(self, now: float, allowance: float) -> Fault | None:
        """Whether the newest observation is too old for another command."""
        if self.newest is None or now - self.newest <= self._max_age + allowance + TOLERANCE:
            return None
        return Fault(FaultKind.STALE_OBSERVATION, now, f"the newest is {now - self.newest:.4g} s old")

    def _values(self, given: Any, now: float) -> tuple[np.ndarray | None, list[Fault]]:
        try:
            values = parse_observation(given, self._spec)
        except NonFiniteObservationError as error:
            return None, [Fault(FaultKind.NON_FINITE_OBSERVATION, now, str(error))]
        except PolicyInputError as error:
            return None, [Fault(FaultKind.WRONG_OBSERVATION, now, str(error))]
        if (reason := find_implausible(values, self._spec)) is not None:
            return None, [Fault(FaultKind.IMPLAUSIBLE_OBSERVATION, now, reason)]
        return values, []

    def _time(self, time: float, now: float, *, for_a_new_period: bool) -> list[Fault]:
        if not math.isfinite(time) or time > now + self._ahead:
            return [Fault(FaultKind.CLOCK_JUMP, now, f"a time stamp of {time!r} at {now:.6g}")]
        faults = []
        if self.newest is not None and time < self.newest - TOLERANCE:
            detail = f"from {self.newest - time:.4g} s before one that came earlier"
            faults.append(Fault(FaultKind.REORDERED_OBSERVATION, now, detail))
        elif for_a_new_period and self._used is not None and time <= self._used + TOLERANCE:
            faults.append(Fault(FaultKind.REPEATED_OBSERVATION, now, f"time stamp {time:.6g} again"))
        if now - time > self._max_age + TOLERANCE:
            faults.append(Fault(FaultKind.STALE_OBSERVATION, now, f"{now - time:.4g} s old"))
        self.newest = time if self.newest is None else max(self.newest, time)
        return faults


def seconds(t: Any) -> float:
    """A time as a number; NaN for what is none."""
    try:
        return float(t)
    except (TypeError, ValueError, OverflowError):
        return math.nan
