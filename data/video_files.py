"""Frames of video files, decoded with PyAV one after the other: bounded memory, and no trust in the files.

Damage that the decoder notices is an error, and so is a file that ends before its header says. Changed
bytes that still decode, as in a video without compression and sometimes in H.264, cannot be detected.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.data.frames import Bytes
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.errors import DemoError, NsdePolicyError, describe_problem, import_optional
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked, open_regular

FORMATS = "avi,mov,matroska,gif,asf,flv,mpeg,mpegts,mpegvideo,m4v,ogg"
"""Formats that are read; others, such as playlists, can name further files and addresses."""
STRICT = "crccheck+bitstream+buffer+explode"
"""Checks of the decoder, each of which ends decoding."""
MAX_SIDE = 4096
"""Largest height and width of a stored frame."""
MAX_PIXELS = MAX_SIDE**2
"""Most pixels of a frame before it is resized."""
UNEVEN = 0.25
"""Frames are evenly spaced if no interval differs from the median by more than this share."""
Span = tuple[int, int]
"""First frame of a part of a video, and one past its last."""


@dataclass(frozen=True)
class FrameConfig(BaseConfig):
    """How frames are taken from videos."""

    size: Annotated[int, Meta(ge=1, le=MAX_SIDE)] = 64
    """Height and width of the stored frames."""
    stride: Count = 1
    """Keep every n-th frame."""
    crop: bool = False
    """Cut the largest square out of the middle of each frame; otherwise the whole frame is squeezed."""


def read_rate(path: Path) -> float:
    """Return the frames per second that a video states."""
    with open_video(path) as (_, stream):
        rate = stream.average_rate or stream.guessed_rate
        if not rate:
            raise DemoError(f"{path} does not state its frames per second; convert it to another format")
        return float(rate)


def read_duration(path: Path) -> float:
    """Return how long a video lasts, in seconds, as its header says."""
    with open_video(path) as (container, stream):
        if stream.duration:
            return float(stream.duration * stream.time_base)
        return float(container.duration or 0) / 1e6


def read_video(path: Path, config: FrameConfig, spans: Sequence[Span] = ()) -> list[Bytes]:
    """Decode the frames of a video, or of its parts `spans`, which may overlap and are cut off at its end.

    Frames of each part are (frames, size, size, 3) uint8.
    """
    limit = get_max_unpacked() // (config.size * config.size * 3)
    parts: list[list[Bytes]] = [[] for _ in spans or (0,)]
    times = []
    with open_video(path) as (container, stream):
        for index, (frame, time) in enumerate(_decode(path, container, stream)):
            times.append(time)
            small = None
            for part, (start, stop) in zip(parts, spans or ((0, index + 1),), strict=True):
                if start <= index < stop and (index - start) % config.stride == 0:
                    small = _shrink(frame, config) if small is None else small
                    part.append(small)
            if sum(map(len, parts)) > limit:
                raise DemoError(
                    f"{path} has more than {limit} frames, the limit; cut it into shorter videos, use a "
                    f"larger --stride, or set {MAX_UNPACKED_VARIABLE}"
                )
    _check_times(path, times)
    for k, part in enumerate(parts):
        if len(part) < MIN_STEPS:
            where = f" of its frames {spans[k][0] + 1} to {spans[k][1]}" if spans else ""
            raise DemoError(f"{path} is too short: {len(part)} frames{where}, expected at least {MIN_STEPS}")
    return [np.stack(part) for part in parts]


@contextmanager
def open_video(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a video and its first stream of frames; raise `DemoError` for whatever its decoder raises."""
    av = import_optional("av", "video")
    with open_regular(path, error=DemoError) as file:
        if not file.read(1):
            raise DemoError(f"{path} is empty (0 bytes)")
        file.seek(0)
        try:
            with av.open(file, options={"format_whitelist": FORMATS}) as container:
                if not container.streams.video:
                    raise DemoError(f"{path} holds no video")
                stream = container.streams.video[0]
                if stream.codec_context is None:
                    raise DemoError(f"{path} holds video of an unknown codec; convert it, such as to H.264")
                if not 0 < stream.width * stream.height <= MAX_PIXELS:
                    raise DemoError(
                        f"{path} has frames of {stream.width} × {stream.height} pixels, expected 1 to "
                        f"{MAX_PIXELS} pixels; it is damaged or must be made smaller first"
                    )
                stream.codec_context.options = {"err_detect": STRICT, "max_pixels": str(MAX_PIXELS)}
                stream.thread_type = "AUTO"
                yield container, stream
        except NsdePolicyError:
            raise
        except (av.error.FFmpegError, OSError, ValueError, RuntimeError) as error:
            raise DemoError(f"{path} is damaged or not a video: {describe_problem(error)}") from error


def _decode(path: Path, container: Any, stream: Any) -> Iterator[tuple[Any, float]]:
    """Decode all frames with their times in seconds; raise `DemoError` if some are missing or damaged."""
    spacing = 1 / float(stream.average_rate or stream.guessed_rate or 25)
    count, start, end = 0, None, 0.0
    for frame in container.decode(stream):
        if frame.is_corrupt:
            raise DemoError(f"{path} is damaged at its frame {count + 1}")
        time = count * spacing if frame.time is None else float(frame.time)
        start = time if start is None else start
        yield frame, time - start
        end = time + max(spacing, float((frame.duration or 0) * (frame.time_base or 0)))
        count += 1
    stated = stream.frames if container.format.name == "avi" else 0
    duration = float(stream.duration * stream.time_base) if stream.duration else 0.0
    if not duration and container.duration and len(container.streams) == 1:
        duration = container.duration / 1e6
    if count < stated or max(end, end - (start or 0.0)) + 1.5 * spacing < duration:
        stated = stated or round(duration / spacing)
        raise DemoError(f"{path} is truncated: it ends after {count} of {stated} frames")


def _check_times(path: Path, times: Sequence[float]) -> None:
    """Raise `DemoError` unless frames are evenly spaced."""
    gaps = np.diff(times)
    if len(gaps) and (np.abs(gaps - np.median(gaps)) > UNEVEN * np.median(gaps) + 2e-3).any():
        raise DemoError(
            f"{path} has a variable frame rate: frames are {gaps.min():.3g} to {gaps.max():.3g} s apart; "
            "convert it to a constant rate, for example with ffmpeg -r 25"
        )


def _shrink(frame: Any, config: FrameConfig) -> Bytes:
    """Convert a frame to colours, turn it upright, crop it if configured, and resize it."""
    picture = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
    height, width = picture.shape[:2]
    if config.crop:
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        picture = picture[top : top + side, left : left + side]
    given = type(frame).from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    # like `resize_frames`, but more than ten times faster for large frames
    small = given.reformat(width=config.size, height=config.size, format="rgb24", interpolation="BILINEAR")
    pixels: Bytes = small.to_ndarray()
    return pixels
