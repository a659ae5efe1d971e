"""Checks of the camera frames that a control session receives."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsde_policy.core.spec import STATE_KEY, CameraSpec
from nsde_policy.errors import PolicyInputError
from nsde_policy.interface.calibration import Calibration, measure_change
from nsde_policy.interface.observation import find_implausible_frame, parse_frame
from nsde_policy.interface.planner import PolicySpec

from .clock import parse_time
from .faults import Fault, FaultKind, get_reaction
from .session_config import ResolvedConfig, SessionConfig

VISIBLE_FACTOR = 2.0
"""Motion is visible if it is larger than this multiple of the largest one that changed no training frame,
and by at least the typical change over one policy period."""
LOSSES = (FaultKind.MISSING_FRAME, FaultKind.IMPLAUSIBLE_FRAME, FaultKind.FROZEN_FRAME, FaultKind.STALE_FRAME)
"""Faults of a camera that is lost; a frame of a wrong shape or type is a mistake in the program."""


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
        self._cameras, self._circular, self._max_ahead = spec.cameras, spec.circular, 1 / config.rate_hz
        self._survives, self._on_fault = spec.survives_lost_camera, config.on_fault
        holds = {limits.camera: (limits.hold - 1) / resolved.policy_hz for limits in calibration.frames}
        self._max_age = {each.name: resolved.max_age_s + holds.get(each.name, 0.0) for each in spec.cameras}
        self._max_frozen = resolved.max_frozen_s
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
        self.ages: dict[str, float] = {}
        """Age of the newest frame of each camera that has time stamps, seconds."""

    def check(self, obs: Mapping[str, object], times: Mapping[str, float], now: float) -> list[Fault]:
        """Return the faults of all frames of an observation; some may have time stamps of their own."""
        faults = self._find_unknown_times(times, now)
        for camera in self._cameras:
            faults += self._check_frame(obs, camera, now)
            if camera.name in times:
                faults += self._check_time(camera.name, times[camera.name], now)
        return faults

    def find_lost(self, faults: list[Fault]) -> tuple[list[Fault], list[Fault]]:
        """Split faults into those of a lost camera that the policy goes on without, and all others.

        It goes on without one camera if it was trained to, unless the reaction to the fault is not to hold.
        """
        lost = [
            fault
            for fault in faults
            if fault.kind in LOSSES and get_reaction(self._on_fault, fault.kind) == "hold"
        ]
        if not self._survives or len({fault.camera for fault in lost}) != 1:
            return [], faults
        return lost, [fault for fault in faults if fault not in lost]

    def copy(self, lost: Sequence[Fault]) -> tuple[np.ndarray | None, ...]:
        """Copy the frames that `check` accepted, (1, height, width, 3), None for lost cameras.

        A driver may write the next frame into the same memory.
        """
        without = {fault.camera for fault in lost}
        names = (camera.name for camera in self._cameras)
        return tuple(None if name in without else self._frames[name][None].copy() for name in names)

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

    def _find_unknown_times(self, times: Mapping[str, float], now: float) -> list[Fault]:
        names = [camera.name for camera in self._cameras]
        if not (unknown := [name for name in times if name not in names]):
            return []
        detail = f"no camera of time stamp {unknown[0]!r:.60}; the names are {', '.join([STATE_KEY, *names])}"
        return [Fault(FaultKind.WRONG_OBSERVATION, now, detail)]

    def _check_time(self, name: str, time: float, now: float) -> list[Fault]:
        if not time <= now + self._max_ahead:
            detail = f"the time stamp of {name} is {time!r}, the clock {now:.6g}"
            return [Fault(FaultKind.CLOCK_JUMP, now, detail, name)]
        self.ages[name] = max(now - time, 0.0)
        if now - time > self._max_age[name] + 1e-9:
            return [Fault(FaultKind.STALE_FRAME, now, f"{name} is {now - time:.4g} s old", name)]
        return []

    def find_frozen(self, plain: np.ndarray, now: float, lost: Sequence[Fault]) -> list[Fault]:
        """Return a fault for each camera whose frame stays the same although the robot moves.

        Call it after `check` found no other fault than those of lost cameras. It goes by the session's clock:
        a time stamp may be wrong.

        Args:
            plain: Plausible low-dimensional observation, (plain_dim,).
            now: Time of the session's clock.
            lost: Faults of lost cameras, which have no new frame.
        """
        faults, without = [], {fault.camera for fault in lost}
        for name, visible in self._visible.items():
            if name in without:
                self._first.pop(name, None)
                continue
            first, frame = self._first.get(name), self._frames[name]
            if first is None or not np.array_equal(first.frame, frame):
                self._first[name] = _Sight(frame.copy(), plain, now)  # a camera may reuse its memory
                continue
            moved = np.abs(measure_change(plain, first.plain, self._circular))
            seconds = now - first.time
            if seconds > self._max_frozen + 1e-9 and (moved > visible).any():
                column = int(np.argmax(moved / visible))
                detail = (
                    f"{name} has not changed for {seconds:.4g} s, but obs[{column}] changed by "
                    f"{moved[column]:.4g}; restart the camera"
                )
                faults.append(Fault(FaultKind.FROZEN_FRAME, now, detail, name))
        return faults


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
