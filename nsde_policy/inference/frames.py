"""Check the camera frames of an observation; needs numpy only."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nsde_policy.core.spec import CameraSpec
from nsde_policy.errors import FrameError


def parse_frames(observations: Mapping[str, Any], cameras: tuple[CameraSpec, ...]) -> list[np.ndarray]:
    """Return the frames of all cameras, each (n, height, width, 3) uint8; n is 1 for a single observation.

    Raises:
        FrameError: If a frame is missing, or has another shape or type than the demonstrations.
    """
    frames = [_parse_frame(observations, camera) for camera in cameras]
    counts = {len(frame) for frame in frames}
    if len(counts) > 1:
        raise FrameError(f"frames of different cameras have different numbers of rows: {sorted(counts)}")
    return frames


def _parse_frame(observations: Mapping[str, Any], camera: CameraSpec) -> np.ndarray:
    given = observations.get(camera.name)
    if given is None:
        found = ", ".join(repr(key) for key in observations) or "nothing"
        raise FrameError(f"the frame {camera.name!r} is missing, found {found:.120}")
    detach = getattr(given, "detach", None)  # a tensor, of a library that need not be installed
    try:
        frame = np.asarray(detach().cpu() if callable(detach) else given)
    except (TypeError, ValueError, RuntimeError):
        raise FrameError(f"{camera.name} must be an array {camera.shape} uint8, got {given!r:.60}") from None
    if frame.dtype != np.uint8:
        raise FrameError(
            f"{camera.name} must hold uint8 from 0 to 255, got {frame.dtype}; floats in [0, 1] are "
            "converted by (255 * frame).round().astype(numpy.uint8)"
        )
    if frame.shape[-3:] != camera.shape or frame.ndim not in (3, 4):
        hint = "; move the colours to the last axis" if frame.shape[-3:-2] == (3,) else ""
        raise FrameError(f"{camera.name} must have shape {camera.shape}, got {frame.shape}{hint}")
    return frame if frame.ndim == 4 else frame[None]
