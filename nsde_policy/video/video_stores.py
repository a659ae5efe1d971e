"""Video files, among them those of KTH, written into a store of videos.

Such a store is a recording without observations and actions: `data/img` holds the frames, and
`meta/episode_ends` the end of each video.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.data.frames import Bytes
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.data.video_files import MAX_SIDE, open_video
from nsde_policy.data.zarr_store.writer import DemoWriter
from nsde_policy.errors import DemoError
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked, read_file

from .settings import VIDEO_KEY

Split = Literal["train", "validation", "test"]
Span = tuple[int, int]
"""First frame of a part of a video, and one past its last."""
SUFFIXES = (".avi", ".gif", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv")
"""Ends of the names of files that are videos."""
SAME_RATE = 0.01
"""Videos of a set have the same rate if it differs by less than this fraction."""
UNEVEN = 0.25
"""Frames are evenly spaced if no interval differs from the median by more than this fraction."""

KTH_PERSONS: Mapping[Split, tuple[int, ...]] = {
    "train": (11, 12, 13, 14, 15, 16, 17, 18),
    "validation": (1, 4, 19, 20, 21, 23, 24, 25),
    "test": (2, 3, 5, 6, 7, 8, 9, 10, 22),
}
"""Persons of each part, as in Schuldt, Laptev and Caputo (2004)."""
KTH_SEQUENCES = "00sequences.txt"
_KTH_NAME = re.compile(
    r"(person(\d\d)_(?:boxing|handclapping|handwaving|jogging|running|walking)_d[1-4])_uncomp\.avi"
)
_KTH_LINE = re.compile(r"(person\d\d_[a-z]+_d\d)\s+frames?\s+([\d\s,-]+)", re.I)


@dataclass(frozen=True)
class FrameConfig(BaseConfig):
    """How frames are taken from videos."""

    size: Annotated[int, Meta(ge=1, le=MAX_SIDE)] = 64
    """Height and width of the stored frames."""
    stride: Count = 1
    """Keep every n-th frame."""
    crop: bool = False
    """Cut the largest square out of the middle of each frame; otherwise the whole frame is squeezed."""


class WriteReport(NamedTuple):
    """What a store of videos holds after writing."""

    videos: int
    """Videos in the store; each part of a divided video counts."""
    frames: int
    rate_hz: float
    added: int
    """Videos that were written this time."""


def find_videos(root: Path, *, kth: Split | None = None) -> dict[Path, Sequence[Span]]:
    """Find all videos in a folder and below, or those of one part of KTH; a file is a set of one.

    Returns:
        The parts of each file that become episodes, none for the whole video. KTH is divided into its
        sequences if `00sequences.txt` lies next to the videos.
    """
    paths = [root] if root.is_file() else _list_files(root)
    files: dict[Path, Sequence[Span]] = {path: () for path in paths if path.suffix.lower() in SUFFIXES}
    expected = f"files that end with {', '.join(SUFFIXES)}"
    if kth is not None:
        spans, persons = _read_sequences(root), KTH_PERSONS[kth]
        matches = [(path, _KTH_NAME.fullmatch(path.name.lower())) for path in files]
        files = {path: spans.get(m[1], ()) for path, m in matches if m and int(m[2]) in persons}
        listed = ", ".join(map(str, persons))
        expected = f"person01_boxing_d1_uncomp.avi and so on, here of the {kth} persons {listed}"
    if not files:
        raise DemoError(f"{root} holds no videos; expected {expected}")
    return files


def _read_sequences(root: Path) -> dict[str, list[Span]]:
    """Read the frame ranges of `00sequences.txt`, counted from 1, last one included; empty without it."""
    path = root / KTH_SEQUENCES
    if not path.exists():
        return {}
    text = read_file(path, 2**20, error=DemoError).decode("utf-8", "replace")
    spans = {
        name.lower(): [(int(a) - 1, int(b)) for a, b in re.findall(r"(\d{1,6})\s*-\s*(\d{1,6})", ranges)]
        for name, ranges in _KTH_LINE.findall(text)
    }
    if not spans:
        raise DemoError(
            f"{path} holds no lines like 'person01_boxing_d1 frames 1-95, 96-185'; correct or remove it"
        )
    return spans


def _list_files(root: Path) -> list[Path]:
    """Return all files in a folder and below by name, without hidden ones and without links to folders."""
    if not root.is_dir():
        raise DemoError(f"the folder {root} does not exist")
    files: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files)


def write_videos(
    files: Mapping[Path, Sequence[Span]],
    out: Path,
    config: FrameConfig,
    *,
    made_with: Mapping[str, object],
    progress: Callable[[Sequence[Path]], Iterable[Path]] = iter,
) -> WriteReport:
    """Write videos into a store, or continue a store that was started with the same files and settings.

    Each episode is on disk as soon as it is decoded; one video at a time is in memory. The store says what it
    was `made_with`. `progress` wraps the sequence of files, for a progress bar.
    """
    paths = list(files)
    rate = read_rate(paths[0])
    names = repr([(path.name, files[path]) for path in paths])
    made_with = {
        "by": "video",
        **made_with,
        "files": hashlib.sha256(os.fsencode(names)).hexdigest()[:16],
        **config.to_dict(),
    }
    with DemoWriter(out, resume=True, rate_hz=rate / config.stride, made_with=made_with) as writer:
        before = done = len(writer)
        for path in progress(paths):
            count = max(1, len(files[path]))
            if done >= count:
                done -= count
                continue
            own_rate = read_rate(path)
            if abs(own_rate / rate - 1) > SAME_RATE:
                raise DemoError(
                    f"{path} has {own_rate:.4g} frames per second, the first video has {rate:.4g}; convert "
                    f"it to the same rate, for example with ffmpeg -r {rate:.4g}"
                )
            for part in read_video(path, config, files[path])[done:]:
                writer.append(None, {VIDEO_KEY: part})
            done = 0
        return WriteReport(len(writer), writer.frames, rate / config.stride, len(writer) - before)


def read_rate(path: Path) -> float:
    """Return the frames per second that a video states."""
    with open_video(path) as (_, stream):
        rate = stream.average_rate or stream.guessed_rate
        if not rate:
            raise DemoError(f"{path} does not state its frames per second; convert it to another format")
        return float(rate)


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
    gaps = np.diff(times)
    if len(gaps) and (np.abs(gaps - np.median(gaps)) > UNEVEN * np.median(gaps) + 2e-3).any():
        raise DemoError(
            f"{path} has a variable frame rate: frames are {gaps.min():.3g} to {gaps.max():.3g} s apart; "
            "convert it to a constant rate, for example with ffmpeg -r 25"
        )
    for k, part in enumerate(parts):
        if len(part) < MIN_STEPS:
            where = f" of its frames {spans[k][0] + 1} to {spans[k][1]}" if spans else ""
            raise DemoError(f"{path} is too short: {len(part)} frames{where}, expected at least {MIN_STEPS}")
    return [np.stack(part) for part in parts]


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


def _shrink(frame: Any, config: FrameConfig) -> Bytes:
    """Convert a frame to colours, turn it upright, crop it if configured, and resize it."""
    picture = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90))
    height, width = picture.shape[:2]
    if config.crop:
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        picture = picture[top : top + side, left : left + side]
    upright = type(frame).from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    # like `resize_frames`, but more than ten times faster for large frames
    small = upright.reformat(width=config.size, height=config.size, format="rgb24", interpolation="BILINEAR")
    pixels: Bytes = small.to_ndarray()
    return pixels
