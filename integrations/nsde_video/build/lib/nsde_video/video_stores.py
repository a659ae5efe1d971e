"""Video files, written into a store of videos.

Such a store is a recording without observations and actions: `data/img` holds the frames, and
`meta/episode_ends` the end of each video.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.data.frames import Bytes
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.data.video_files import MAX_SIDE, open_video
from nsde_policy.data.zarr_store.writer import DemoWriter
from nsde_policy.errors import DemoError
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked

from .settings import VIDEO_KEY

SUFFIXES = (".avi", ".gif", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv")
"""Ends of the names of files that are videos."""
SAME_RATE = 0.01
"""Videos of a set have the same rate if it differs by less than this fraction."""
UNEVEN = 0.25
"""Frames are evenly spaced if no interval differs from the median by more than this fraction."""


@dataclass(frozen=True)
class FrameConfig(BaseConfig):
    """How frames are taken from videos."""

    size: Annotated[int, Meta(ge=1, le=MAX_SIDE)] = 64
    """Height and width of the stored frames."""
    stride: Count = 1
    """Keep every n-th frame."""


class WriteReport(NamedTuple):
    """What a store of videos holds after writing."""

    videos: int
    frames: int
    rate_hz: float
    added: int
    """Videos that were written this time."""


def find_videos(root: Path) -> list[Path]:
    """Find all videos in a folder and below, sorted by name; a file is a set of one.

    Hidden files and links to folders are left out.
    """
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise DemoError(f"the folder {root} does not exist")
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    videos = sorted(file for file in files if file.suffix.lower() in SUFFIXES)
    if not videos:
        raise DemoError(f"{root} holds no videos; expected files that end with {', '.join(SUFFIXES)}")
    return videos


def write_videos(
    files: Sequence[Path],
    out: Path,
    config: FrameConfig,
    *,
    progress: Callable[[Sequence[Path]], Iterable[Path]] = iter,
) -> WriteReport:
    """Write videos into a store, or continue a store that was started with the same files and settings.

    Each video is on disk as soon as it is decoded. `progress` wraps the sequence of files, for a progress
    bar.
    """
    rate = read_rate(files[0])
    names = repr([file.name for file in files])
    made_with = {
        "by": "video",
        "files": hashlib.sha256(os.fsencode(names)).hexdigest()[:16],
        **config.to_dict(),
    }
    with DemoWriter(out, resume=True, rate_hz=rate / config.stride, made_with=made_with) as writer:
        before = len(writer)
        for path in progress(files[before:]):
            own_rate = read_rate(path)
            if abs(own_rate / rate - 1) > SAME_RATE:
                raise DemoError(
                    f"{path} has {own_rate:.4g} frames per second, the first video has {rate:.4g}; convert "
                    f"it to the same rate, for example with ffmpeg -r {rate:.4g}"
                )
            writer.append(None, {VIDEO_KEY: read_video(path, config)})
        return WriteReport(len(writer), writer.frames, rate / config.stride, len(writer) - before)


def read_rate(path: Path) -> float:
    """Return the frames per second that a video states."""
    with open_video(path) as (_, stream):
        rate = stream.average_rate or stream.guessed_rate
        if not rate:
            raise DemoError(f"{path} does not state its frames per second; convert it to another format")
        return float(rate)


def read_video(path: Path, config: FrameConfig) -> Bytes:
    """Decode the frames of a video, (frames, size, size, 3) uint8.

    Raises:
        DemoError: If the video is damaged, truncated, too short or too long, or its frame rate varies.
    """
    limit = get_max_unpacked() // (config.size * config.size * 3)
    frames: list[Bytes] = []
    times: list[float] = []
    with open_video(path) as (container, stream):
        period = 1 / float(stream.average_rate or stream.guessed_rate or 25)
        for index, frame in enumerate(container.decode(stream)):
            if frame.is_corrupt:
                raise DemoError(f"{path} is damaged at its frame {index + 1}")
            times.append(index * period if frame.time is None else frame.time)
            if index % config.stride == 0:
                frames.append(_shrink(frame, config.size))
            if len(frames) > limit:
                raise DemoError(
                    f"{path} has more than {limit} frames, the limit; cut it into shorter videos, use a "
                    f"larger --stride, or set {MAX_UNPACKED_VARIABLE}"
                )
        stated = _count_stated_frames(container, stream, period)
    gaps = np.diff(times)
    if len(gaps) and (np.abs(gaps - np.median(gaps)) > UNEVEN * np.median(gaps) + 2e-3).any():
        raise DemoError(
            f"{path} has a variable frame rate: frames are {gaps.min():.3g} to {gaps.max():.3g} s apart; "
            "convert it to a constant rate, for example with ffmpeg -r 25"
        )
    if len(times) < stated - 1:
        raise DemoError(f"{path} is truncated: it ends after {len(times)} of {stated} frames")
    if len(frames) < MIN_STEPS:
        raise DemoError(f"{path} is too short: {len(frames)} frames, expected at least {MIN_STEPS}")
    return np.stack(frames)


def _count_stated_frames(container: Any, stream: Any, period: float) -> int:
    """Return how many frames a video should have by its header, 0 if unknown; `period` is in seconds."""
    if container.format.name == "avi":  # its duration is that of the frames that are there
        return int(stream.frames)
    if stream.duration:
        return round(float(stream.duration * stream.time_base) / period)
    if container.duration and len(container.streams) == 1:  # otherwise, the sound may be longer
        return round(float(container.duration) / 1e6 / period)
    return 0


def _shrink(frame: Any, size: int) -> Bytes:
    """Convert a frame to colours, turn it upright and resize it; the aspect ratio is not kept."""
    picture = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
    upright = type(frame).from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    # like `resize_frames`, but more than ten times faster for large frames
    small = upright.reformat(width=size, height=size, format="rgb24", interpolation="BILINEAR")
    pixels: Bytes = small.to_ndarray()
    return pixels
