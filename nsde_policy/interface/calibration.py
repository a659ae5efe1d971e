"""Statistics of the demonstrations for a control session: action limits and an out-of-distribution detector.

They are measured at the end of training and stored as `calibration.json` in the run directory. Needs numpy
only.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import NonNegative, Number, Positive
from nsde_policy.config import BaseConfig
from nsde_policy.core.spec import wrap_angle
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json

from .planner import PolicySpec
from .roughness import measure_roughness

CALIBRATION_FILE = "calibration.json"
QUANTILE = 0.999
"""Quantile of steps, accelerations and distances that becomes a limit."""
FALLBACK_STEPS = 6.0
"""Largest step and acceleration without a calibration, in standard deviations of the action increments."""
POSITION_MARGIN = 0.05
"""How far commands may leave the demonstrated range on either side, as a fraction of the range."""
RIDGE = 1e-4
"""Added to the variance of every feature, in squared ranges, so that constant features can be inverted."""
MAX_FEATURES = 512
"""Most features whose distance from the demonstrations is measured: the file grows with their square."""
LOOKS = ("brightness", "contrast", "detail")
"""What `describe_frame` measures on a camera frame."""
GreyValue = Annotated[float, Meta(ge=0, le=255)]


@dataclass(frozen=True)
class CameraRange(BaseConfig):
    """Range of the training frames of one camera, and how far the robot moved while they stayed the same."""

    camera: str
    """Name of the camera, as in the spec of the policy."""
    low: tuple[GreyValue, ...]
    """Smallest brightness, contrast and detail, grey values from 0 to 255."""
    high: tuple[GreyValue, ...]
    """Largest brightness, contrast and detail."""
    still: tuple[NonNegative, ...]
    """Largest change of each low-dimensional observation while frames were equal bit for bit."""
    hold: Positive = 1.0
    """Median number of policy periods for which a frame stays the same: more than 1 for a slow camera."""

    @classmethod
    def measure(
        cls,
        camera: str,
        looks: np.ndarray,
        repeats: np.ndarray,
        obs: np.ndarray,
        episodes: Sequence[tuple[int, int]],
        circular: Sequence[int],
    ) -> "CameraRange":
        """Measure the range of a camera's frames in episodes, each from a first frame to one past its last.

        `looks` are results of `describe_frame`, (frames, 3); `repeats` is true where a frame equals the one
        before. The columns `circular` of the observations (frames, plain_dim) are angles.
        """
        measured = np.concatenate([looks[start:end] for start, end in episodes]).astype(np.float64)
        still, holds = np.zeros(obs.shape[1]), [1]
        for start, end in episodes:
            first = start
            for frame in range(start + 1, end):
                if repeats[frame]:
                    still = np.maximum(still, np.abs(measure_change(obs[frame], obs[first], circular)))
                else:
                    holds.append(frame - first)
                    first = frame
        low, high = np.quantile(measured, (1 - QUANTILE, QUANTILE), axis=0)
        hold = float(np.median(holds))
        return cls(camera, _round_digits(low), _round_digits(high), _round_digits(still), hold)


def measure_change(obs: np.ndarray, before: np.ndarray, circular: Sequence[int]) -> np.ndarray:
    """Return the change from one low-dimensional observation to another; angles by the shorter way."""
    change: np.ndarray = np.subtract(obs, before, dtype=np.float64)
    angles = [column for column in circular if column < len(change)]
    change[angles] = wrap_angle(change[angles])
    return change


@dataclass(frozen=True)
class Calibration(BaseConfig):
    """Statistics of the demonstrations, per policy period."""

    rate_hz: NonNegative
    """Policy periods per second; 0 if the demonstrations do not state it."""
    step: tuple[Positive, ...]
    """0.999 quantile of the change of each action over one period, (act_dim,)."""
    acceleration: tuple[Positive, ...]
    """0.999 quantile of how that change differs from one period to the next, (act_dim,)."""
    mean: tuple[Number, ...]
    """Mean of the features of a state, angles as sine and cosine; empty if not measured."""
    precision: tuple[tuple[Number, ...], ...]
    """Regularised inverse covariance of the features."""
    threshold: Number
    """Mahalanobis distance beyond which a state is out of distribution."""
    action_low: tuple[Number, ...] = ()
    """Smallest action, (act_dim,); empty for the demonstrated range with a margin."""
    action_high: tuple[Number, ...] = ()
    """Largest action, (act_dim,); empty for the demonstrated range with a margin."""
    delta_columns: tuple[int, ...] = ()
    """Action columns that are changes of an observation over one period; they may be sent only once."""
    frames: tuple[CameraRange, ...] = ()
    """Range of the frames of each camera; empty without cameras or if not measured."""
    usually_visible: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Fraction of what the policy relies on that is visible in 99 % of undisturbed frames of held-out
    episodes, or without any of every fifth training episode; None if the policy does not report it."""
    roughness: NonNegative | None = None
    """Roughness of the recorded commands, see `measure_roughness`; None if not measured."""
    std_factors: tuple[Positive, ...] = ()
    """Factors with which σ fits held-out episodes, of each plain observation and action column; empty if not
    measured. They were applied only if no episode was held out."""

    @classmethod
    def measure(
        cls,
        spec: PolicySpec,
        states: np.ndarray,
        actions: np.ndarray,
        episode_ends: Sequence[int] | np.ndarray,
        *,
        rate_hz: float,
        action_limits: tuple[Sequence[float], Sequence[float]] | None = None,
        delta_columns: tuple[int, ...] = (),
    ) -> "Calibration":
        """Measure the statistics on states as the policy sees them, (frames, d), and recorded actions.

        The rate is 0 if unknown. `action_limits` are those of the robot or environment, see
        `find_action_limits`; `delta_columns` are actions that change an observation over one period.

        An episode starts at rest. If the action before the first one is an observed position, the step from
        there to the first action counts as a step and as an acceleration. If it is a constant, the robot was
        not there, and the step does not count.
        """
        steps, turns = [], []
        columns = np.array(spec.first_action_from or (-1,) * spec.act_dim)
        for start, end in pairwise([0, *episode_ends]):
            before = np.where(columns < 0, np.nan, states[start : start + 1, spec.obs_dim :])
            commands = np.concatenate([before, actions[start:end]]).astype(np.float64)
            steps.append(np.diff(commands, axis=0))
            turns.append(np.diff(steps[-1], axis=0, prepend=0.0))
        step, acceleration = _measure_limits(np.concatenate(steps), np.concatenate(turns), spec, actions)
        features = _compute_features(states.astype(np.float64), spec)
        low, high = find_action_limits(spec, actions, action_limits)
        roughness = measure_roughness(np.split(actions, episode_ends), spec)
        mean: np.ndarray = np.empty(0)
        precision: np.ndarray = np.empty((0, 0))
        threshold = 0.0
        if features.shape[1] <= MAX_FEATURES:
            mean = features.mean(axis=0)
            precision = np.linalg.inv(np.atleast_2d(np.cov(features.T)) + RIDGE * np.eye(len(mean)))
            threshold = float(np.quantile(_mahalanobis(features - mean, precision), QUANTILE))
        return cls(
            rate_hz=rate_hz,
            step=step,
            acceleration=acceleration,
            mean=_round_digits(mean),
            precision=tuple(_round_digits(row) for row in precision),
            threshold=threshold,
            action_low=_round_digits(low),
            action_high=_round_digits(high),
            delta_columns=delta_columns,
            roughness=None if roughness is None else _round_digits(np.array([roughness]))[0],
        )

    @classmethod
    def from_spec(cls, spec: PolicySpec) -> "Calibration":
        """Derive limits from `increment_std` for a run without calibration; no distance is measured."""
        largest = tuple(FALLBACK_STEPS * std for std in spec.increment_std[spec.obs_dim :])
        return cls(rate_hz=0.0, step=largest, acceleration=largest, mean=(), precision=(), threshold=0.0)

    @classmethod
    def read(cls, run: Path, spec: PolicySpec) -> "Calibration":
        """Read `calibration.json` of a run directory, or use `from_spec` if there is none."""
        path = run / CALIBRATION_FILE
        if not os.path.lexists(path):  # a link that leads nowhere is damage, not absence
            return cls.from_spec(spec)
        try:
            calibration = cls.from_dict(read_json(path, error=ConfigError))
        except (ConfigError, TypeError, ValueError) as error:
            hint = "restore the file, or delete it to use default limits"
            raise CheckpointError(f"cannot read {path}: {' '.join(str(error).split())}; {hint}") from None
        return calibration.check(spec)

    def check(self, spec: PolicySpec) -> "Calibration":
        """Return `self`, or raise `CheckpointError` if it belongs to a policy of other sizes."""
        features, cameras = spec.dim + len(spec.circular), [camera.name for camera in spec.cameras]
        sizes = {
            "step": (spec.act_dim,),
            "acceleration": (spec.act_dim,),
            "action_low": (0, spec.act_dim),
            "action_high": (len(self.action_low),),
            "mean": (0, features),
            "precision": (len(self.mean),),
            "std_factors": (0, spec.plain_dim + spec.act_dim),
        }
        problems = [
            f"{len(getattr(self, name))} values of {name}, expected {allowed[-1]}"
            for name, allowed in sizes.items()
            if len(getattr(self, name)) not in allowed
        ]
        if any(len(row) != len(self.mean) for row in self.precision):
            problems.append("a precision that is not square")
        if not {*self.delta_columns} <= {*range(spec.act_dim)}:
            problems.append(f"delta_columns {self.delta_columns}, expected columns of {spec.act_dim} actions")
        if self.frames and [limits.camera for limits in self.frames] != cameras:
            problems.append(f"the cameras {[limits.camera for limits in self.frames]}, expected {cameras}")
        for limits in self.frames:
            if (len(limits.low), len(limits.high), len(limits.still)) != (3, 3, spec.plain_dim):
                problems.append(f"a range of {limits.camera} of another size")
        if problems:
            raise CheckpointError(f"the calibration has {problems[0]}; it belongs to another run")
        return self


def find_action_limits(
    spec: PolicySpec,
    actions: np.ndarray,
    robot_limits: tuple[Sequence[float], Sequence[float]] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest action, each (act_dim,).

    - A limit of the robot or environment in `robot_limits` is used as it is, unless it is infinite.
    - Actions between -1 and 1 that reach -1 or 1 are normalised and get exactly these limits; positions,
      which match observations, and binary actions do not count.
    - A binary action gets its two values.
    - Any other gets its demonstrated range with a margin.
    """
    low, high = (np.array(values[spec.obs_dim :]) for values in (spec.low, spec.high))
    margin = POSITION_MARGIN * (high - low)
    binary = _has_two_values(actions)
    free = ~binary & (np.array(spec.first_action_from or (-1,) * spec.act_dim) < 0)
    largest = np.abs(actions).max(0)
    low, high = low - np.where(binary, 0.0, margin), high + np.where(binary, 0.0, margin)
    if (largest[free] <= 1.0).all() and (largest[free] >= 1.0).any():
        low[free], high[free] = -1.0, 1.0
    if robot_limits is not None:
        bounds = np.array(robot_limits, dtype=np.float64)
        is_known = np.isfinite(bounds).all(0) & (bounds[0] < bounds[1])
        low, high = np.where(is_known, bounds[0], low), np.where(is_known, bounds[1], high)
    return low, high


class OODDetector:
    """Detector of states that are out of distribution, by Mahalanobis distance from the demonstrations.

    One ellipsoid around all demonstrated states: it works for every method and takes microseconds. It detects
    other units, other places and actions far from the robot's position, but not rare combinations of usual
    values.
    """

    def __init__(self, calibration: Calibration, spec: PolicySpec) -> None:
        self._spec, self._threshold = spec, calibration.threshold
        self._mean, self._precision = np.array(calibration.mean), np.array(calibration.precision)
        self.is_calibrated = bool(calibration.mean)
        """Whether statistics of the demonstrations are available."""

    def distance(self, state: np.ndarray) -> float | None:
        """Return the distance of a state (d,) from the mean of the demonstrations; None if not calibrated."""
        if not self.is_calibrated:
            return None
        features = _compute_features(state[None].astype(np.float64), self._spec)
        return float(_mahalanobis(features - self._mean, self._precision)[0])

    def is_ood(self, distance: float | None) -> bool:
        """Return whether fewer than one in a thousand demonstrated states was as far away."""
        return self.is_calibrated and distance is not None and distance > self._threshold


def _compute_features(states: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """Scale states by the demonstrated ranges, angles as sine and cosine, (n, d) → (n, d + angles)."""
    circular = list(spec.circular)
    angles = states[:, circular]
    features = (states - np.array(spec.low)) / (np.array(spec.high) - np.array(spec.low))
    features[:, circular] = np.sin(angles)
    return np.concatenate([features, np.cos(angles)], axis=1)


def _mahalanobis(centred: np.ndarray, precision: np.ndarray) -> np.ndarray:
    distances: np.ndarray = np.sqrt(np.maximum((centred @ precision * centred).sum(axis=1), 0.0))
    return distances


def _measure_limits(
    steps: np.ndarray, turns: np.ndarray, spec: PolicySpec, actions: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure the largest step and acceleration of each action; NaN marks what a constant made up.

    Both are at least the RMS of the steps, because a session starts at rest even if demonstrations do not. A
    binary action may switch at once.
    """
    step = np.array(spec.increment_std[spec.obs_dim :])
    acceleration, is_binary = step.copy(), _has_two_values(actions)
    for action in range(spec.act_dim):
        sizes = [np.abs(values[np.isfinite(values)]) for values in (steps[:, action], turns[:, action])]
        if sizes[0].any():
            least = np.sqrt(np.square(sizes[0]).mean())
            quantile = 1.0 if is_binary[action] else QUANTILE
            step[action], acceleration[action] = (
                max(least, np.quantile(values, quantile)) if len(values) else least for values in sizes
            )
    return _round_digits(step), _round_digits(acceleration)


def _has_two_values(actions: np.ndarray) -> np.ndarray:
    """Return whether each column holds at most two values, (act_dim,)."""
    is_binary: np.ndarray = ((actions == actions.min(0)) | (actions == actions.max(0))).all(0)
    return is_binary


def _round_digits(values: np.ndarray) -> tuple[float, ...]:
    """Round to nine significant digits, more than float32 has."""
    return tuple(float(f"{value:.9g}") for value in values)
