"""Sets of videos on disk (KTH, CLEVRER, any folder), written frame by frame into a store of this package.

A store of videos has the layout of a recording without observations and actions: `data/img` holds the frames,
`meta/episode_ends` the end of each video, `meta/episode_source` a number made from the name of its file.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from nsde_policy.data.frames import Bytes
from nsde_policy.data.video_files import FrameConfig, Span, read_rate, read_video
from nsde_policy.data.zarr_store.writer import DemoWriter
from nsde_policy.errors import DemoError
from nsde_policy.files import read_file

Split = Literal["train", "validation", "test"]
SUFFIXES = (".avi", ".gif", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv")
"""Ends of the names of files that are videos."""
SAME_RATE = 0.01
"""Videos of a set have the same rate if it differs by less than this share."""

KTH_ACTIONS = ("boxing", "handclapping", "handwaving", "jogging", "running", "walking")
KTH_PERSONS: Mapping[Split, tuple[int, ...]] = {
    "train": (11, 12, 13, 14, 15, 16, 17, 18),
    "validation": (1, 4, 19, 20, 21, 23, 24, 25),
    "test": (2, 3, 5, 6, 7, 8, 9, 10, 22),
}
"""Persons of each part, as in Schuldt, Laptev and Caputo (2004)."""
KTH_SEQUENCES = "00sequences.txt"
_KTH_NAME = re.compile(rf"(person(\d\d)_({'|'.join(KTH_ACTIONS)})_d([1-4]))_uncomp\.avi")
_KTH_LINE = re.compile(r"(person\d\d_[a-z]+_d\d)\s+frames?\s+([\d\s,-]+)", re.I)
CLEVRER_NUMBERS: Mapping[Split, tuple[int, int]] = {
    "train": (0, 10_000),
    "validation": (10_000, 15_000),
    "test": (15_000, 20_000),
}
"""First number of the videos of each part, and one past the last."""
_CLEVRER_NAME = re.compile(r"video_(\d{5})\.mp4")


@dataclass(frozen=True)
class VideoItem:
    """A video of a set, in a file."""

    path: Path
    """Where the video file is."""
    name: str
    """Path in the set, which identifies the video when writing is continued."""
    info: Mapping[str, int] = field(default_factory=dict)
    """Numbers about the video, stored for each of its episodes."""
    spans: tuple[Span, ...] = ()
    """Parts that become episodes; empty for the whole video."""

    @property
    def source(self) -> int:
        """Number made from the name."""
        return int.from_bytes(hashlib.sha256(os.fsencode(self.name)).digest()[:7], "big")


@dataclass(frozen=True)
class VideoSet:
    """Videos to be written, and what made the selection."""

    items: tuple[VideoItem, ...]
    settings: Mapping[str, object]
    """Settings that determine which videos these are, and how they are divided."""


@dataclass(frozen=True)
class WriteReport:
    """What a store of videos holds after writing."""

    videos: int
    """Videos in the store; each part of a divided video counts."""
    frames: int
    rate_hz: float
    added: int
    """Videos that were written this time."""


def find_videos(root: Path) -> VideoSet:
    """Find all videos in a folder and below, by the ends of their names; a file is a set of one video."""
    if root.is_file():
        return VideoSet((VideoItem(root, root.name),), {"set": "folder"})
    files = [path for path in _list_files(root) if path.suffix.lower() in SUFFIXES]
    items = [VideoItem(path, path.relative_to(root).as_posix()) for path in files]
    return _make_set(items, root, f"files that end with {', '.join(SUFFIXES)}", {"set": "folder"})


def find_kth(root: Path, split: Split) -> VideoSet:
    """Find the videos of one part of KTH, in one folder per action or all in one folder.

    If `00sequences.txt` lies next to them, each of its sequences becomes an episode, else each video.
    """
    spans, items = _read_sequences(root), {}
    for path in _list_files(root):
        match = _KTH_NAME.fullmatch(path.name.lower())
        if match and (person := int(match[2])) in KTH_PERSONS[split]:
            info = {"person": person, "action": KTH_ACTIONS.index(match[3]), "scenario": int(match[4])}
            items[match[0]] = VideoItem(path, match[0], info, spans.get(match[1], ()))
    persons = ", ".join(map(str, KTH_PERSONS[split]))
    expected = f"person01_boxing_d1_uncomp.avi and so on, here of the {split} persons {persons}"
    settings = {"set": "kth", "split": split, "sequences": bool(spans)}
    return _make_set([items[name] for name in sorted(items)], root, expected, settings)


def _read_sequences(root: Path) -> dict[str, tuple[Span, ...]]:
    """Read the frame ranges of `00sequences.txt`, counted from 1, last one included; empty without it."""
    path = root / KTH_SEQUENCES
    if not path.exists():
        return {}
    text = read_file(path, 2**20, error=DemoError).decode("utf-8", "replace")
    found: dict[str, tuple[Span, ...]] = {}
    for name, ranges in _KTH_LINE.findall(text):
        spans = re.findall(r"(\d{1,6})\s*-\s*(\d{1,6})", ranges)
        found[name.lower()] = tuple((int(first) - 1, int(last)) for first, last in spans)
    if not found:
        raise DemoError(
            f"{path} holds no lines like 'person01_boxing_d1 frames 1-95, 96-185'; correct or remove it"
        )
    return found


def find_clevrer(root: Path, split: Split) -> VideoSet:
    """Find the videos of one part of CLEVRER, `video_<split>/*/video_00000.mp4`."""
    folder, (first, end) = root / f"video_{split}", CLEVRER_NUMBERS[split]
    items = {}
    for path in _list_files(folder):
        match = _CLEVRER_NAME.fullmatch(path.name)
        if match and first <= (number := int(match[1])) < end:
            items[number] = VideoItem(path, path.name, {"video": number})
    expected = f"video_{first:05}.mp4 to video_{end - 1:05}.mp4"
    settings = {"set": "clevrer", "split": split}
    return _make_set([items[number] for number in sorted(items)], folder, expected, settings)


def _make_set(
    items: Sequence[VideoItem], root: Path, expected: str, settings: Mapping[str, object]
) -> VideoSet:
    if not items:
        raise DemoError(f"{root} holds no videos; expected {expected}")
    return VideoSet(tuple(items), settings)


def _list_files(root: Path) -> list[Path]:
    """Return all files in a folder and below, sorted, without hidden ones and without links to folders."""
    if not root.is_dir():
        raise DemoError(f"the folder {root} does not exist")
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(found)


def write_videos(
    videos: VideoSet,
    out: Path,
    config: FrameConfig,
    *,
    progress: Callable[[Sequence[VideoItem]], Iterable[VideoItem]] = iter,
) -> WriteReport:
    """Write videos into a store, or continue a store that was started with the same settings.

    Each episode is on disk as soon as it is decoded; one video at a time is in memory. `progress` wraps the
    sequence of videos, for a progress bar.
    """
    rate = read_rate(videos.items[0].path)
    made_with = {"by": "video", **videos.settings, **config.to_dict()}
    with DemoWriter(out, resume=True, rate_hz=rate / config.stride, made_with=made_with) as writer:
        before = len(writer)
        done = Counter(writer.read_info().get("source", np.zeros(0)).tolist())
        for item in progress(videos.items):
            if done[item.source] >= max(1, len(item.spans)):
                continue
            for part in _read_item(item, config, rate)[done[item.source] :]:
                writer.append(None, {"img": part}, {"source": item.source, **item.info})
        return WriteReport(len(writer), writer.frames, rate / config.stride, len(writer) - before)


def _read_item(item: VideoItem, config: FrameConfig, rate: float) -> list[Bytes]:
    """Decode the episodes of a video; raise `DemoError` if it has another rate than the store."""
    found = read_rate(item.path)
    if abs(found / rate - 1) > SAME_RATE:
        raise DemoError(
            f"{item.path} has {found:.4g} frames per second, the first video has {rate:.4g}; convert it to "
            f"the same rate, for example with ffmpeg -r {rate:.4g}"
        )
    return read_video(item.path, config, item.spans)
