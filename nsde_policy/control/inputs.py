"""Checks of everything that a control session receives: observations, their time stamps, the clock."""

import math
from collections.abc import Mapping

import numpy as np

from nsde_policy.errors import ConfigError, PolicyInputError
from nsde_policy.interface.calibration import Calibration, OODDetector
from nsde_policy.interface.observation import (
    Observation,
    ObservationMonitor,
    convert_observation,
    encode_observation,
    find_non_finite,
)
from nsde_policy.interface.planner import Planner, PolicySpec

from .faults import Fault, FaultKind, describe_error
from .frame_monitor import FrameMonitor, parse_times
from .session_config import ResolvedConfig, SessionConfig

TIME_TOLERANCE_S = 1e-9


class InputMonitor:
    """Checks each observation and each reading of the clock.

    All times are in seconds; time stamps may be up to one control period in the future.
    """

    def __init__(
        self,
        spec: PolicySpec,
        config: SessionConfig,
        resolved: ResolvedConfig,
        *,
        calibration: Calibration,
        planner: Planner,
    ) -> None:
        self._spec, self._planner, self._max_ahead = spec, planner, 1 / config.rate_hz
        self._max_age, self._max_gap = resolved.max_age_s, resolved.max_gap_s
        self._frames = FrameMonitor(spec, config, resolved, calibration)
        self._observations = ObservationMonitor(spec)
        self._ood_detector = OODDetector(calibration, spec)
        self._fault_when_ood = config.fault_when_ood
        if self._fault_when_ood and not self._ood_detector.is_calibrated:
            raise ConfigError("fault_when_ood needs a calibration: give the run's calibration.json")
        self._min_visible = config.min_visible
        if self._min_visible and calibration.usually_visible is None:
            raise ConfigError(
                f"min_visible is {self._min_visible:g}, but this policy does not report how much is visible: "
                "policies with cameras do if they are trained with this version; leave out min_visible"
            )
        self.reset()

    def reset(self) -> None:
        """Forget all observations and time stamps; NaN compares false with every time."""
        self._frames.reset()
        self._observations.reset()
        self.outside: str | None = None
        """Why the last accepted observation is far outside the demonstrated range; None if it is not."""
        self._newest = math.nan  # of all observations
        self._used = math.nan  # of the observations that the policy got
        self._clock = math.nan
        self.ood: float | None = None
        """Out-of-distribution score of the last state; None if it is not known."""
        self._seen: tuple[float, float | None] = -math.inf, None  # time of the newest encoded frames; visible
        self.lost: tuple[Fault, ...] = ()
        """Faults of the camera that the last observation does without."""
        self._lost_before: set[str | None] = set()  # cameras, in the observation that the policy got

    @property
    def frame_ages(self) -> Mapping[str, float]:
        """Age of the newest frame of each camera that has time stamps, seconds."""
        return self._frames.ages

    @property
    def visible(self) -> float | None:
        """Fraction of what the policy relies on that is visible in the newest encoded frames, if known."""
        return self._seen[1]

    @property
    def is_ood(self) -> bool:
        """Whether the last state was out of distribution, or the last observation far outside the range."""
        return self.outside is not None or self._ood_detector.is_ood(self.ood)

    def score_state(self, state: np.ndarray, now: float) -> list[Fault]:
        """Update the out-of-distribution score; return the faults of a state that the session demands."""
        is_complete = not (self.lost or self._lost_before)  # a plan may be of an earlier observation
        self.ood = self._ood_detector.distance(state) if is_complete else None
        faults, least = [], self._min_visible
        if self._fault_when_ood and self.is_ood:
            detail = self.outside or f"distance {self.ood or 0.0:.3g}"
            faults.append(Fault(FaultKind.OUT_OF_DISTRIBUTION, now, detail))
        if self.visible is not None and self.visible < least:
            detail = f"{self.visible:.0%} is visible, at least {least:.0%} is needed; clear the view"
            faults.append(Fault(FaultKind.HIDDEN_SCENE, now, detail))
        return faults

    def check_clock(self, now: float) -> Fault | None:
        """Return a fault if the clock failed (NaN), or jumped since it was last read."""
        if math.isnan(now):
            return Fault(FaultKind.CLOCK_JUMP, now, "the clock did not return a time in seconds")
        before, self._clock = self._clock, now
        if math.isnan(before) or -TIME_TOLERANCE_S <= now - before <= self._max_gap:
            return None
        self._newest = self._used = math.nan
        self._seen = -math.inf, None
        self._frames.reset()
        return Fault(FaultKind.CLOCK_JUMP, now, f"the clock moved by {now - before:+.4g} s")

    def advance_clock(self, now: float) -> None:
        """Register time that passed inside the session, so that it does not count as a jump."""
        if now >= self._clock:
            self._clock = now

    def check_observation(
        self, obs: object, t: object, now: float, *, period: int, is_new_period: bool
    ) -> tuple[Observation | None, list[Fault]]:
        """Return the parsed observation of a policy period, or None and the faults that it has.

        Frames are checked here, but encoded by the planner's thread.
        """
        time, frame_times = parse_times(t, self._spec.cameras, now)
        observed: Observation | None = None
        faults: list[Fault] = []
        lost: list[Fault] = []
        try:
            named = obs if self._spec.cameras and isinstance(obs, Mapping) else None
            values = convert_observation(obs, self._spec)
            if values.ndim != 1:
                raise PolicyInputError(f"a session takes one observation, got a batch {values.shape}")
            if (reason := find_non_finite(values)) is not None:
                faults.append(Fault(FaultKind.NON_FINITE_OBSERVATION, now, reason))
            else:
                frame_faults = [] if named is None else self._frames.check(named, frame_times, now)
                lost, faults = self._frames.find_lost(frame_faults)
                observed = self._observations.check(values, period)
                if observed.is_jump:
                    faults.append(
                        Fault(FaultKind.IMPLAUSIBLE_OBSERVATION, now, f"a jump: {observed.outside}")
                    )
            if named is not None and observed is not None and not faults:
                frozen = self._frames.find_frozen(values, now, lost)
                lost, faults = self._frames.find_lost([*lost, *frozen])
                if is_new_period:
                    frames, changed = self._frames.copy(lost), {fault.camera for fault in lost}
                    is_changed = changed != self._lost_before
                    observed = observed._replace(frames=frames, cameras_changed=is_changed)
        except PolicyInputError as error:
            faults.append(Fault(FaultKind.WRONG_OBSERVATION, now, str(error)))
        except Exception as error:  # an observation may raise anything
            faults.append(Fault(FaultKind.WRONG_OBSERVATION, now, describe_error(error)))
        faults += self._check_time(time, now, is_new_period=is_new_period)
        self.lost = () if faults else tuple(lost)
        if faults or observed is None:
            return None, faults
        self.outside = observed.outside
        return observed, faults

    def encode(self, obs: Observation, now: float) -> np.ndarray:
        """Encode an observation with frames that was accepted at `now`, (obs_dim,); slow."""
        encoded, visible = encode_observation(self._planner, obs.plain[None], obs.frames)
        if now > self._seen[0]:  # a history encodes its newest frames first
            self._seen = now, None if visible is None else float(visible[0])
        row: np.ndarray = encoded[0]
        return row

    def mark_used(self) -> None:
        """Register that the policy got the newest observation."""
        self._used = self._newest
        self._lost_before = {fault.camera for fault in self.lost}

    def check_age(self, now: float, allowance: float) -> list[Fault]:
        """Return a fault if the newest observation is too old for another command."""
        age = now - self._newest
        if age > self._max_age + allowance + TIME_TOLERANCE_S:
            return [Fault(FaultKind.STALE_OBSERVATION, now, f"the newest observation is {age:.4g} s old")]
        return []

    def _check_time(self, time: float, now: float, *, is_new_period: bool) -> list[Fault]:
        if not math.isfinite(time) or time > now + self._max_ahead:
            return [Fault(FaultKind.CLOCK_JUMP, now, f"the time stamp is {time!r}, the clock {now:.6g}")]
        faults = []
        if time < self._newest - TIME_TOLERANCE_S:
            detail = f"{self._newest - time:.4g} s older than the observation before"
            faults.append(Fault(FaultKind.REORDERED_OBSERVATION, now, detail))
        elif is_new_period and time <= self._used + TIME_TOLERANCE_S:
            faults.append(Fault(FaultKind.REPEATED_OBSERVATION, now, f"time stamp {time:.6g} again"))
        if now - time > self._max_age + TIME_TOLERANCE_S:
            faults.append(Fault(FaultKind.STALE_OBSERVATION, now, f"{now - time:.4g} s old"))
        self._newest = max(time, self._newest)
        return faults
