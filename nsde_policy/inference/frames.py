"""Check the camera frames of an observation; no torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nsde_policy.core.spec import CameraSpec
from nsde_policy.data.frames import describe_frame
from nsde_policy.encoders.base import STATE_KEY
from nsde_policy.encoders.identity import describe_value
from nsde_policy.errors import FrameError, ImplausibleFrameError, MissingFrameError
from nsde_policy.inference.calibration import LOOKS, CameraRange

MARGIN_FACTOR = 3.0
"""Brightness, contrast and detail may be lower and higher than in the demonstrations by this factor."""
NOISE_ALLOWANCE = 16.0
"""Detail that noise on every pixel may add, grey values; noise of 5 % of the range adds 14."""
PROBLEMS = {
    "brightness": ("black or too dark", "white or too bright"),
    "contrast": ("almost uniform", "of too much contrast"),
    "detail": ("blurred", "noise"),
}
"""What a frame is called if a value is too low or too high."""
FLOAT_ADVICE = (
    "; convert values from 0 to 1 by (255 * frame).round().astype(numpy.uint8), those from 0 to 255 by "
    "frame.astype(numpy.uint8)"
)
"""How to convert a frame of floats."""


def parse_frames(
    observations: Mapping[str, Any], cameras: tuple[CameraSpec, ...], *, is_batch: bool = False
) -> list[np.ndarray]:
    """Return the frames of all cameras, each (n, height, width, 3) uint8; n is 1 for a single observation.

    Raises:
        FrameError: If a frame is missing, or has another shape or type than the demonstrations.
    """
    frames = [parse_frame(observations, camera, is_batch=is_batch) for camera in cameras]
    for camera, frame in zip(cameras, frames, strict=True):
        if len(frame) != len(frames[0]):
            raise FrameError(camera.name, f"has {len(frame)} rows, {cameras[0].name} has {len(frames[0])}")
    return frames


def parse_frame(observations: Mapping[str, Any], camera: CameraSpec, *, is_batch: bool = False) -> np.ndarray:
    """Return the frame of one camera, (n, height, width, 3) uint8, contiguous and writable.

    Args:
        observations: Observations by name.
        camera: Camera whose frame is wanted.
        is_batch: Whether frames have another axis in front, (n, height, width, 3).

    Raises:
        FrameError: If it is missing, or has another shape or type than the demonstrations.
    """
    given = observations.get(camera.name)
    if given is None:
        found = ", ".join(repr(key) for key in observations if key != camera.name) or "nothing"
        raise MissingFrameError(camera.name, f"is missing, found {found:.120}")
    try:
        detach = getattr(given, "detach", None)  # a tensor, of a library that need not be installed
        frame = np.asarray(detach().cpu() if callable(detach) else given)
    except Exception:  # the conversion is code of the object, which may raise anything
        wanted = f"must be an array {camera.shape} uint8"
        raise FrameError(camera.name, f"{wanted}, got {describe_value(given)}") from None
    if frame.dtype != np.uint8:
        problem = f"must hold uint8 from 0 to 255, got {frame.dtype!s:.40}"
        raise FrameError(camera.name, problem + (FLOAT_ADVICE if frame.dtype.kind == "f" else ""))
    if frame.shape[-3:] != camera.shape or frame.ndim != (4 if is_batch else 3) or not len(frame):
        shape = "(n, {}, {}, {})".format(*camera.shape) if is_batch else camera.shape
        hint = "; move the colours to the last axis" if frame.shape[-3:-2] == (3,) else ""
        if frame.shape[-3:] == camera.shape:
            hint = f"; give {STATE_KEY} and frames both with an axis of rows in front, or both without"
        raise FrameError(camera.name, f"must have shape {shape}, got {frame.shape}{hint}")
    return np.require(frame if is_batch else frame[None], requirements=["C", "W"])


def find_implausible_frame(frame: np.ndarray, seen: CameraRange) -> str | None:
    """Return why a frame (height, width, 3) is implausible compared with the demonstrations, or None.

    It detects covered lenses, dead cameras, over-exposure and broken decoding, not another scene.
    """
    low, high = np.array(seen.low), np.array(seen.high)
    least = low / MARGIN_FACTOR
    most = high * MARGIN_FACTOR + np.array([0.0, 0.0, NOISE_ALLOWANCE])
    most[0] = 255 - (255 - high[0]) / MARGIN_FACTOR
    look = describe_frame(frame)
    for column, (name, value) in enumerate(zip(LOOKS, look.tolist(), strict=True)):
        if least[column] <= value <= most[column]:
            continue
        problem = PROBLEMS[name][int(value > most[column])]
        return (
            f"is {problem}: its {name} is {value:.3g}, in the demonstrations {low[column]:.3g} to "
            f"{high[column]:.3g}; check lens, exposure and cable of the camera"
        )
    return None


def check_plausible_frames(
    frames: list[np.ndarray], cameras: tuple[CameraSpec, ...], seen: tuple[CameraRange, ...]
) -> None:
    """Raise `ImplausibleFrameError` if a frame, each camera (n, height, width, 3), is implausible."""
    if not seen:
        return
    for camera, rows, known in zip(cameras, frames, seen, strict=True):
        for frame in rows:
            if (problem := find_implausible_frame(frame, known)) is not None:
                raise ImplausibleFrameError(camera.name, problem)
