"""Convert and check observations and camera frames of a robot; needs numpy only.

An observation is an array, a tensor, a list of numbers, or a dict of named observations, which the policy's
encoder turns into one vector (`encoders/`). What these functions return is trusted everywhere else.

`ObservationMonitor` is the rule for observations far from the demonstrations. Sessions, `select_action` of
every policy and `eval` go by it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nsde_policy.core.spec import ENVIRONMENT_KEY, STATE_KEY, CameraSpec
from nsde_policy.data.frames import describe_frame
from nsde_policy.errors import PolicyInputError

from .calibration import LOOKS, CameraRange
from .planner import Planner, PolicySpec, describe_value, is_finite, to_floats

LARGEST_ANGLE = 4 * math.pi
"""Angles beyond two turns are taken for degrees or for another column."""
FAR_OUTSIDE = 1.0
"""Values are far outside if they leave the demonstrated range by more than this multiple of it."""
JUMP_PERIODS = 2
"""Policy periods for which a jump counts as a fault of the sensor; a value that stays is taken as true."""
TINY_FRACTION = 0.02
"""If all values are below this fraction of the demonstrated range, and most outside it, the unit is wrong or
the sensor is off."""
MARGIN_FACTOR = 3.0
"""Brightness, contrast and detail may be this many times lower than in the demonstrations, and brightness and
detail this many times higher."""
NOISE_ALLOWANCE = 16.0
"""Detail that noise on every pixel may add, grey values; noise of 5 % of the range adds 14."""
PROBLEMS = {
    "brightness": ("black or too dark", "white or too bright"),
    "contrast": ("almost uniform",),
    "detail": ("blurred", "noise"),
}
"""What a frame is called if a value is too low or too high."""


class Observation(NamedTuple):
    """An observation that was checked, and compared with the demonstrations."""

    plain: np.ndarray
    """All of it, (obs_dim,); of an observation with frames the low-dimensional part, (plain_dim,)."""
    frames: tuple[np.ndarray | None, ...] = ()
    """Frame of each camera, (1, height, width, 3) uint8; None for a camera that is lost."""
    outside: str | None = None
    """Why it is far outside the demonstrated range; None if it is not."""
    is_jump: bool = False
    """Whether it got there by a jump that no demonstration comes near: a sensor fault, not to be used."""
    cameras_changed: bool = False
    """Whether a camera was lost or came back since the observation before."""


class ObservationMonitor:
    """Compares the observations of an episode with the demonstrations.

    A value far outside the demonstrated range is used, and reported as out of distribution. If it got there
    within one policy period, by more than the whole range, it is a jump for at most `JUMP_PERIODS`. Only a
    first observation with all values far outside is refused: its units are wrong.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self._low, self._high = (np.array(values[: spec.plain_dim]) for values in (spec.low, spec.high))
        self._is_angle = np.isin(np.arange(spec.plain_dim), spec.circular)
        self._range = np.where(self._is_angle, 2 * math.pi, self._high - self._low)
        self._usual_low = np.where(self._is_angle, -LARGEST_ANGLE, self._low)
        self._usual_high = np.where(self._is_angle, LARGEST_ANGLE, self._high)
        self.reset()

    def reset(self) -> None:
        """Forget all observations: the next one is the first of an episode."""
        self._last: np.ndarray | None = None  # that was used
        self._jumped_at: int | None = None

    def check(self, obs: np.ndarray, period: int) -> Observation:
        """Compare finite values (obs_dim,) of a policy period; features of images are not compared.

        Raises:
            PolicyInputError: If it is the first observation, and all of its values are far outside.
        """
        plain, last = obs[: len(self._low)], self._last
        if ((self._usual_low <= plain) & (plain <= self._usual_high)).all():  # fast, for most observations
            self._last, self._jumped_at = plain.copy(), None
            return Observation(obs)
        far = self._find_far(plain)
        outside = self.describe_outside(plain) if far.any() else None
        if last is None:
            has_unit = (plain != self._low) & (plain != self._high)  # unlike constants and switches
            lengths = far[has_unit & (~self._is_angle | self._is_angle.all())]
            if len(lengths) > 1 and lengths.all():
                raise PolicyInputError(f"the first observation has wrong units in every column: {outside}")
        elif far.any():
            changed = (np.abs(plain - last) > self._range) | self._is_dead(plain)
            if (far & ~self._find_far(last) & changed).any():
                self._jumped_at = period if self._jumped_at is None else self._jumped_at
                if 0 <= period - self._jumped_at < JUMP_PERIODS:
                    return Observation(obs, outside=outside, is_jump=True)
        self._last, self._jumped_at = plain.copy(), None
        return Observation(obs, outside=outside)

    def describe_outside(self, plain: np.ndarray) -> str | None:
        """Return why values (plain_dim,) are far outside the demonstrated range, or None.

        It detects degrees in place of radians, wrong units of length, swapped columns and unfamiliar places.
        """
        if self._is_dead(plain):
            return (
                f"all values are far below the demonstrated range, got {plain.tolist()!s:.120}; "
                "check units (metres instead of pixels?)"
            )
        far = np.flatnonzero(self._find_far(plain))
        if not len(far):
            return None
        column, value = far[0], plain[far[0]]
        if self._is_angle[column]:
            return (
                f"obs[{column}] must be an angle in radians, got {value:g}; "
                "check for degrees or columns in another order"
            )
        return (
            f"obs[{column}] is {value:g}, but was in [{self._low[column]:g}, {self._high[column]:g}] in the "
            "demonstrations; check units and column order"
        )

    def _find_far(self, plain: np.ndarray) -> np.ndarray:
        """Return which values are far outside, (plain_dim,) bool; of angles, those of more than two turns."""
        slack = FAR_OUTSIDE * self._range
        is_beyond = (plain < self._low - slack) | (plain > self._high + slack) | self._is_dead(plain)
        far: np.ndarray = np.where(self._is_angle, np.abs(plain) > LARGEST_ANGLE, is_beyond)
        return far

    def _is_dead(self, plain: np.ndarray) -> bool:
        """Return whether all lengths are nearly zero, unlike in the demonstrations."""
        lengths = ~self._is_angle
        largest = np.maximum(np.abs(self._low), np.abs(self._high))
        is_tiny = np.abs(plain) < TINY_FRACTION * largest
        outside = (plain < self._low) | (plain > self._high)
        count = lengths.sum()
        return bool(count >= 3 and is_tiny[lengths].all() and 2 * outside[lengths].sum() > count)


def _encode_plain(observations: Mapping[str, object], spec: PolicySpec) -> np.ndarray:
    """Encode the low-dimensional part of named observations, (plain_dim,) or a batch (B, plain_dim)."""
    from nsde_policy.encoders import get_encoder  # a plug-in, found when a policy needs it

    numbers = {
        key: to_floats(observations[key], "observation")
        for key in (STATE_KEY, ENVIRONMENT_KEY)
        if key in observations
    }
    plain = np.array(get_encoder(spec.encoder).encode({**observations, **numbers}), np.float64)
    return _check_shape(plain, spec.plain_dim)


def convert_observation(obs: object, spec: PolicySpec) -> np.ndarray:
    """Return one observation (obs_dim,) or a batch (B, obs_dim), which may not be finite.

    Of named observations with frames it is the low-dimensional part, (plain_dim,) or (B, plain_dim).
    """
    if isinstance(obs, Mapping):
        return _encode_plain(obs, spec)
    array = to_floats(obs, "observation")
    if spec.cameras and array.shape[-1:] != (spec.obs_dim,):
        raise PolicyInputError(
            f"this policy needs a dict of observations: {STATE_KEY!r} ({spec.plain_dim},) and "
            + ", ".join(f"{camera.name!r} {camera.shape} uint8" for camera in spec.cameras)
            + f"; got {describe_value(obs)}"
        )
    return _check_shape(array, spec.obs_dim)


def _check_shape(array: np.ndarray, size: int) -> np.ndarray:
    if array.ndim not in (1, 2) or array.shape[-1] != size or not len(array):
        raise PolicyInputError(f"observation must have shape ({size},) or (B, {size}), got {array.shape}")
    return array


def parse_observation(
    obs: object, spec: PolicySpec, *, ranges: Sequence[CameraRange] = ()
) -> tuple[np.ndarray, tuple[np.ndarray | None, ...]]:
    """Check observations in any form; return values as `convert_observation` does, and the frames of cameras.

    Frames are those that `encode_observation` takes, and none if all of the observations is in the values.
    With the `ranges` of the training frames, black, uniform and noisy frames are refused.

    Raises:
        PolicyInputError: If a part is missing, has the wrong shape or type, is not finite or implausible.
    """
    values = convert_observation(obs, spec)
    if not is_finite(values):
        raise PolicyInputError(f"observation must be finite, got {values.tolist()!s:.200}")
    if not spec.cameras or not isinstance(obs, Mapping):
        return values, ()
    missing = [camera.name for camera in spec.cameras if obs.get(camera.name) is None]
    lost = missing if spec.survives_lost_camera and len(missing) == 1 else []
    by_camera = {limits.camera: limits for limits in ranges}
    frames: list[np.ndarray | None] = []
    for camera in spec.cameras:
        if camera.name in lost:
            frames.append(None)
            continue
        frame = parse_frame(obs, camera, is_batch=values.ndim == 2)
        if values.ndim == 2 and len(frame) != len(values):
            raise PolicyInputError(f"{camera.name} has {len(frame)} rows, {STATE_KEY} has {len(values)}")
        for picture in frame if camera.name in by_camera else ():
            if (problem := find_implausible_frame(picture, by_camera[camera.name])) is not None:
                raise PolicyInputError(problem)
        frames.append(frame)
    return values, tuple(frames)


def encode_observation(
    planner: Planner, values: np.ndarray, frames: Sequence[np.ndarray | None]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Append the features of frames to values, (n, plain_dim) to (n, obs_dim); return also what is visible.

    Frames are (n, height, width, 3) of each camera; those of a lost camera are None, and its features are in
    the middle of their range.
    """
    spec, n, count = planner.spec, len(values), len(frames)
    pictures = [
        np.zeros((n, *camera.shape), np.uint8) if frame is None else frame
        for camera, frame in zip(spec.cameras, frames, strict=True)
    ]
    features, visible = planner.encode_frames(values, pictures)
    features = to_floats(features, "features of camera frames")
    if not is_finite(features):
        raise PolicyInputError(
            "the encoder returned features of camera frames that are not finite; its training diverged "
            "or its weights are damaged: restore the run, or train it again"
        )
    encoded = np.concatenate([values, features], axis=1)
    for lost in (i for i, frame in enumerate(frames) if frame is None):
        columns, middle = spec.find_lost_features(lost, count)
        encoded[:, columns] = middle
        visible = None if visible is None else np.minimum(visible, 1 - 1 / count)
    return _check_shape(encoded, spec.obs_dim), visible


def parse_frame(
    observations: Mapping[str, object], camera: CameraSpec, *, is_batch: bool = False
) -> np.ndarray:
    """Return the frame or batch of frames of a camera, (n, height, width, 3) uint8, contiguous and writable.

    Raises:
        PolicyInputError: If it is missing, or has another shape or type than the demonstrations; the message
            starts with the name of the camera.
    """
    value = observations.get(camera.name)
    if value is None:
        names = ", ".join(repr(key) for key in observations if key != camera.name) or "nothing"
        raise PolicyInputError(
            f"{camera.name} is missing, names {names:.120}; policies with several cameras go on without one "
            "if they were trained with --images-dropout"
        )
    shape = "(n, {}, {}, {})".format(*camera.shape) if is_batch else str(camera.shape)
    expected = f"{camera.name} must be an array {shape} of uint8 from 0 to 255"
    try:
        detach = getattr(value, "detach", None)  # a tensor, of a library that need not be installed
        frame = np.asarray(detach().cpu() if callable(detach) else value)
    except Exception:  # the conversion is code of the object, which may raise anything
        raise PolicyInputError(f"{expected}, got {describe_value(value)}") from None
    has_shape = frame.shape[-3:] == camera.shape and frame.ndim == (4 if is_batch else 3) and len(frame)
    if frame.dtype != np.uint8 or not has_shape:
        raise PolicyInputError(f"{expected}, got {frame.shape} of {frame.dtype!s:.40}")
    return np.require(frame if is_batch else frame[None], requirements=["C", "W"])


def find_implausible_frame(frame: np.ndarray, limits: CameraRange) -> str | None:
    """Return why a frame (height, width, 3) is implausible compared with the demonstrations, or None.

    It detects covered lenses, dead cameras, over-exposure and broken decoding, not another scene. The text
    starts with the name of the camera.
    """
    low, high = np.array(limits.low), np.array(limits.high)
    least = low / MARGIN_FACTOR
    most = high * MARGIN_FACTOR + np.array([0.0, np.inf, NOISE_ALLOWANCE])  # occluders raise the contrast
    most[0] = 255 - (255 - high[0]) / MARGIN_FACTOR
    look = describe_frame(frame)
    for column, (name, value) in enumerate(zip(LOOKS, look.tolist(), strict=True)):
        if least[column] <= value <= most[column]:
            continue
        problem = PROBLEMS[name][int(value > most[column])]
        return (
            f"{limits.camera} is {problem}: its {name} is {value:.3g}, in the demonstrations "
            f"{low[column]:.3g} to {high[column]:.3g}; check lens, exposure and cable of the camera"
        )
    return None
