"""Small video files, written with PyAV in the layouts of public sets."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CODECS = {
    ".avi": ("mpeg4", "yuv420p"),
    ".mp4": ("libx264", "yuv420p"),
    ".webm": ("libvpx", "yuv420p"),
    ".gif": ("gif", "rgb8"),
    ".mkv": ("ffv1", "bgr0"),
}
"""Codec and pixel format by the end of a file's name."""


def draw_scene(number: int, frame: int, width: int = 32, height: int = 24) -> np.ndarray:
    """Draw a bright square that moves to the right; the video's number is the brightness of the rest."""
    picture = np.full((height, width, 3), 20 + 10 * number % 100, np.uint8)
    left = 2 * frame % (width - 8)
    picture[8:16, left : left + 8] = (200, 120, 60)
    return picture


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    *,
    rate: int = 25,
    times: Sequence[int] | None = None,
    codec: tuple[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """Write frames as a video; `times` are in periods of `rate`, evenly spaced if None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name, pixels = codec or CODECS[path.suffix]
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(name, rate=rate, options={"threads": "1"})
        stream.width, stream.height, stream.pix_fmt = frames[0].shape[1], frames[0].shape[0], pixels
        for index, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = (times[index] if times else index), Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_scene(path: Path, number: int, frames: int = 10, **options: object) -> Path:
    """Write a video of `draw_scene`."""
    return write_video(path, [draw_scene(number, k) for k in range(frames)], **options)  # type: ignore[arg-type]
