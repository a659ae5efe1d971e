"""Checks of everything that a control session receives: observations, camera frames and their time stamps.

All times are on the session's clock, in seconds. Time stamps may be up to one control period in the future.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsde_policy.core.spec import STATE_KEY, CameraSpec
from nsde_policy.errors import ConfigError, PolicyInputError
from nsde_policy.interface.calibration import Calibration, OODDetector, measure_change
from nsde_policy.interface.observation import (
    Observation,
    ObservationMonitor,
    convert_observation,
    encode_observation,
    find_implausible_frame,
    parse_frame,
)
from nsde_policy.interface.planner import Planner, PolicySpec, is_finite

from .clock import TIME_TOLERANCE_S, parse_time
from .faults import Fault, FaultKind, describe_error, get_reaction
from .session_config import ResolvedConfig, SessionConfig

VISIBLE_FACTOR = 2.0
"""Motion is visible if it is larger than this multiple of the largest one that changed no training frame,
and by at least the typical change over one policy period."""
MAX_FROZEN_PERIODS = 3.0
"""Policy periods for which a frame may stay the same, bit for bit, while the robot moves."""
LOSSES = (FaultKind.MISSING_FRAME, FaultKind.IMPLAUSIBLE_FRAME, FaultKind.FROZEN_FRAME, FaultKind.STALE_FRAME)
"""Faults of a camera that is lost; a frame of a wrong shape or type is a mistake in the program."""


class InputMonitor:
    """Checks each observation, and scores the states that the policy gets."""

    def __init__(
        self,
        spec: PolicySpec,
        config: SessionConfig,
        resolved: ResolvedConfig,
        *,
        calibration: Calibration,
        planner: Planner,
    ) -> None:
        self._spec = spec
        self._planner = planner
        self._config = config
        self._max_age = resolved.max_age_s
        self._frames = FrameMonitor(spec, config, resolved, calibration)
        self._observations = ObservationMonitor(spec)
        self._ood_detector = OODDetector(calibration, spec)
        if config.fault_when_ood and not self._ood_detector.is_calibrated:
            raise ConfigError("fault_when_ood needs a calibration: give the run's calibration.json")
        if config.min_visible and calibration.usually_visible is None:
            raise ConfigError(
                f"min_visible is {config.min_visible:g}, but this policy does not report how much is "
                "visible; leave out min_visible"
            )
        self.reset()

    def reset(self) -> None:
        """Forget all observations."""
        self.forget_times_and_frames()
        self._observations.reset()
        self.outside: str | None = None
        """Why the last accepted observation is far outside the demonstrated range; None if it is not."""
        self.ood: float | None = None
        """Out-of-distribution score of the last state; None if it is not known."""
        self.lost: tuple[Fault, ...] = ()
        """Faults of the camera that the last observation does without."""
        self._lost_before: set[str | None] = set()  # cameras, in the observation that the policy got

    def forget_times_and_frames(self) -> None:
        """Forget all time stamps, their frames and what was visible in them, because the clock has jumped."""
        self._newest = math.nan  # of all observations; NaN compares false with every time
        self._used = math.nan  # of the observations that the policy got
        self._encoded_at = -math.inf  # of the newest frames that were encoded
        self.visible: float | None = None
        """Fraction of what the policy relies on that is visible in the newest encoded frames, if known."""
        self._frames.reset()

    @property
    def is_ood(self) -> bool:
        """Whether the last state was out of distribution, or the last observation far outside the range."""
        return self.outside is not None or self._ood_detector.is_ood(self.ood)

    def check_observation(
        self, obs: object, t: object, now: float, *, period: int, is_new_period: bool
    ) -> tuple[Observation | None, list[Fault]]:
        """Check an observation; return it if it is the first valid one of its policy period, and its faults.

        None is a missing observation. Frames are checked here, but encoded by the planner's thread.
        """
        if obs is None:
            missing = Fault(FaultKind.MISSING_OBSERVATION, now, "for this period")
            return None, [missing] if is_new_period else []
        time, frame_times = parse_times(t, self._spec.cameras, now)
        observed: Observation | None = None
        lost: list[Fault] = []
        try:
            observed, lost, faults = self._parse(
                obs, frame_times, now, period=period, is_new_period=is_new_period
            )
        except Exception as error:  # an observation may raise anything
            detail = str(error) if isinstance(error, PolicyInputError) else describe_error(error)
            faults = [Fault(FaultKind.WRONG_OBSERVATION, now, detail)]
        faults += self._check_time(time, now, is_new_period=is_new_period)
        self.lost = () if faults else tuple(lost)
        if faults or observed is None:
            return None, faults
        self.outside = observed.outside
        return (observed if is_new_period else None), faults

    def _parse(
        self, obs: object, frame_times: Mapping[str, float], now: float, *, period: int, is_new_period: bool
    ) -> tuple[Observation | None, list[Fault], list[Fault]]:
        """Return an observation, the faults of a camera that the policy goes on without, and all others."""
        values = convert_observation(obs, self._spec)
        if values.ndim != 1:
            raise PolicyInputError(f"a session takes one observation, got a batch {values.shape}")
        if not is_finite(values):
            detail = f"observation must be finite, got {values.tolist()!s:.200}"
            return None, [], [Fault(FaultKind.NON_FINITE_OBSERVATION, now, detail)]
        named = obs if self._spec.cameras and isinstance(obs, Mapping) else None
        lost, faults = ([], []) if named is None else self._frames.check(named, frame_times, now)
        observed = self._observations.check(values, period)
        if observed.is_jump:
            faults.append(Fault(FaultKind.IMPLAUSIBLE_OBSERVATION, now, f"a jump: {observed.outside}"))
        if named is None or faults:
            return observed, lost, faults
        lost, faults = self._frames.check_motion(values, now, lost)
        if is_new_period and not faults:
            is_changed = {fault.camera for fault in lost} != self._lost_before
            observed = observed._replace(frames=self._frames.copy(lost), cameras_changed=is_changed)
        return observed, lost, faults

    def _check_time(self, time: float, now: float, *, is_new_period: bool) -> list[Fault]:
        if not time <= now + 1 / self._config.rate_hz:
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

    def mark_used(self) -> None:
        """Register that the policy got the newest observation."""
        self._used = self._newest
        self._lost_before = {fault.camera for fault in self.lost}

    def encode(self, obs: Observation, now: float) -> np.ndarray:
        """Encode an observation with frames that was accepted at `now`, (obs_dim,); slow."""
        encoded, visible = encode_observation(self._planner, obs.plain[None], obs.frames)
        if now > self._encoded_at:  # a history encodes its newest frames first
            self._encoded_at = now
            self.visible = None if visible is None else float(visible[0])
        row: np.ndarray = encoded[0]
        return row

    def score_state(self, state: np.ndarray, now: float) -> list[Fault]:
        """Update the out-of-distribution score; return the faults that the settings demand for this state."""
        is_complete = not (self.lost or self._lost_before)  # a plan may be of an earlier observation
        self.ood = self._ood_detector.distance(state) if is_complete else None
        faults, least = [], self._config.min_visible
        if self._config.fault_when_ood and self.is_ood:
            detail = self.outside or f"distance {self.ood or 0.0:.3g}"
            faults.append(Fault(FaultKind.OUT_OF_DISTRIBUTION, now, detail))
        if self.visible is not None and self.visible < least:
            detail = f"{self.visible:.0%} is visible, at least {least:.0%} is needed; clear the view"
            faults.append(Fault(FaultKind.HIDDEN_SCENE, now, detail))
        return faults


class _Sight(NamedTuple):
    """A frame, and what was observed when it was first seen, on the session's clock."""

    frame: np.ndarray
    plain: np.ndarray
    time: float


class FrameMonitor:
    """Checks the frames of each observation.

    Without a calibration of the cameras, black and frozen frames are not detected. A camera that was slower
    than the policy in the demonstrations may send older frames, by the time for which it held each.
    """

    def __init__(
        self, spec: PolicySpec, config: SessionConfig, resolved: ResolvedConfig, calibration: Calibration
    ) -> None:
        self._spec = spec
        self._config = config
        self._resolved = resolved
        self._max_frozen = MAX_FROZEN_PERIODS / resolved.policy_hz
        self._ranges = {limits.camera: limits for limits in calibration.frames}
        step = np.array(spec.increment_std[: spec.plain_dim])
        self._visible = {
            name: VISIBLE_FACTOR * np.array(limits.still) + step for name, limits in self._ranges.items()
        }
        self.reset()

    def reset(self) -> None:
        """Forget the frames of all cameras."""
        self._frames: dict[str, np.ndarray] = {}
        self._first: dict[str, _Sight] = {}

    def check(
        self, obs: Mapping[str, object], times: Mapping[str, float], now: float
    ) -> tuple[list[Fault], list[Fault]]:
        """Return the faults of a camera that the policy goes on without, and all others.

        Each camera may have its own time stamps.
        """
        names = [camera.name for camera in self._spec.cameras]
        faults = []
        for name in times:
            if name not in names:
                expected = ", ".join([STATE_KEY, *names])
                detail = f"no camera of time stamp {name!r:.60}; the names are {expected}"
                faults.append(Fault(FaultKind.WRONG_OBSERVATION, now, detail))
        for camera in self._spec.cameras:
            faults += self._check_frame(obs, camera, now)
            if camera.name in times:
                faults += self._check_time(camera.name, times[camera.name], now)
        return self._split(faults)

    def check_motion(
        self, plain: np.ndarray, now: float, lost: list[Fault]
    ) -> tuple[list[Fault], list[Fault]]:
        """Check that frames change while the robot moves; return faults as `check`, which was called before.

        It goes by the session's clock: a time stamp may be wrong.

        Args:
            plain: Plausible low-dimensional observation, (plain_dim,).
            now: Time of the session's clock.
            lost: Faults of lost cameras, which have no new frame.
        """
        faults, without = [*lost], {fault.camera for fault in lost}
        for name, visible in self._visible.items():
            if name in without:
                self._first.pop(name, None)
                continue
            first, frame = self._first.get(name), self._frames[name]
            if first is None or not np.array_equal(first.frame, frame):
                self._first[name] = _Sight(frame.copy(), plain, now)  # a camera may reuse its memory
                continue
            moved = np.abs(measure_change(plain, first.plain, self._spec.circular))
            seconds = now - first.time
            if seconds > self._max_frozen + TIME_TOLERANCE_S and (moved > visible).any():
                column = int(np.argmax(moved / visible))
                detail = (
                    f"{name} has not changed for {seconds:.4g} s, but obs[{column}] changed by "
                    f"{moved[column]:.4g}; restart the camera"
                )
                faults.append(Fault(FaultKind.FROZEN_FRAME, now, detail, name))
        return self._split(faults)

    def copy(self, lost: Sequence[Fault]) -> tuple[np.ndarray | None, ...]:
        """Copy the frames that `check` accepted, (1, height, width, 3), None for lost cameras.

        A driver may write the next frame into the same memory.
        """
        without = {fault.camera for fault in lost}
        names = (camera.name for camera in self._spec.cameras)
        return tuple(None if name in without else self._frames[name][None].copy() for name in names)

    def _split(self, faults: list[Fault]) -> tuple[list[Fault], list[Fault]]:
        """Split off the faults of a camera that the policy goes on without.

        It goes on without one camera if it was trained to. A fault whose reaction is not "hold" stays with
        the others.
        """
        lost = [
            fault
            for fault in faults
            if fault.kind in LOSSES and get_reaction(self._config.on_fault, fault.kind) == "hold"
        ]
        if not self._spec.survives_lost_camera or len({fault.camera for fault in lost}) != 1:
            return [], faults
        return lost, [fault for fault in faults if fault not in lost]

    def _check_frame(self, obs: Mapping[str, object], camera: CameraSpec, now: float) -> list[Fault]:
        """Keep the frame of a camera, or return its fault."""
        name = camera.name
        try:
            frame: np.ndarray = parse_frame(obs, camera)[0]
        except PolicyInputError as error:
            kind = FaultKind.MISSING_FRAME if obs.get(name) is None else FaultKind.WRONG_FRAME
            return [Fault(kind, now, str(error), name)]
        limits = self._ranges.get(name)
        problem = None if limits is None else find_implausible_frame(frame, limits)
        if problem is not None:
            return [Fault(FaultKind.IMPLAUSIBLE_FRAME, now, problem, name)]
        self._frames[name] = frame
        return []

    def _check_time(self, name: str, time: float, now: float) -> list[Fault]:
        """Return the fault of a frame's own time stamp."""
        if not time <= now + 1 / self._config.rate_hz:
            detail = f"the time stamp of {name} is {time!r}, the clock {now:.6g}"
            return [Fault(FaultKind.CLOCK_JUMP, now, detail, name)]
        max_age = self._resolved.max_age_s
        if name in self._ranges:  # a slow camera repeats each frame for some policy periods
            max_age += (self._ranges[name].hold - 1) / self._resolved.policy_hz
        if now - time > max_age + TIME_TOLERANCE_S:
            return [Fault(FaultKind.STALE_FRAME, now, f"{name} is {now - time:.4g} s old", name)]
        return []


def parse_times(t: object, cameras: tuple[CameraSpec, ...], now: float) -> tuple[float, dict[str, float]]:
    """Return the time of an observation, and all others by name.

    Args:
        t: One time; or with cameras, times by name, in which `observation.state` and cameras may be
            absent; None for `now`.
        cameras: Cameras of the policy.
        now: Time of the session's clock.
    """
    if t is None:
        return now, {}
    if not (cameras and isinstance(t, Mapping)):
        return parse_time(t), {}
    try:
        times = {name: parse_time(time) for name, time in t.items()}
        return times.pop(STATE_KEY, now), times
    except Exception:  # a mapping may raise anything
        return math.nan, {}
