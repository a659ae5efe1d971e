"""Demonstrations in groups: HDF5 groups, or files, with one or more whole episodes each."""

import io
import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.errors import DemoError, import_optional, wrap_read_errors

from ..source import MemorySource, SourceArray
from ..types import MIN_STEPS, Ints, Numbers, check_ends

SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # of JPEG and PNG
EPISODE_ARRAYS: Mapping[str, tuple[str, ...]] = {
    "episode": ("episode", "episode_index", "episode_id", "traj_id", "trajectory_id", "demo_id"),
    "ends": ("episode_ends",),
    "lengths": ("episode_lengths", "traj_lengths"),
    "starts": ("episode_starts", "is_first"),
    "dones": ("dones", "done", "terminals", "timeouts", "terminations", "truncations", "finished", "is_last"),
}
"""Usual names of arrays that divide frames into episodes, by what they hold."""


class Group(NamedTuple):
    """Arrays with the same frames; observations may have one row more, after the last action."""

    name: str
    """Name in messages, such as /data/demo_0 in lift.hdf5."""
    arrays: dict[str, SourceArray]
    ends: Ints
    """One past the last frame of each episode of this group."""

    @property
    def frames(self) -> int:
        """Number of frames of all episodes."""
        return int(self.ends.max(initial=0))


class PartedArray(SourceArray):
    """An array with a part of the same type and columns in each group; JPEG and PNG are decoded."""

    def __init__(self, name: str, parts: Sequence[SourceArray], lengths: Sequence[int]) -> None:
        first = parts[0]
        self.name, self.columns, self.angles, self._parts = name, first.columns, first.angles, parts
        self._bounds = np.cumsum([0, *lengths]).tolist()
        row, self.dtype = first.shape[1:], first.dtype
        self.shape, self._is_encoded = (), False
        if first.dtype.metadata or first.dtype.kind == "S" or (first.dtype == np.uint8 and len(row) == 1):
            sample = next(iter(first.read(0, 1)), b"")
            self._is_encoded = np.asarray(sample).tobytes().startswith(SIGNATURES)
            if self._is_encoded:
                image = self._decode(sample, first, 0)
                row, self.dtype = image.shape, image.dtype
        self.shape = (self._bounds[-1], *row)
        if self.dtype.kind not in "biuf" or not first.shape or 0 in row:
            raise DemoError(f"{first.name} is {first.dtype} {first.shape}, expected real numbers (frames, …)")
        extra = min(1, max(0, first.shape[0] - lengths[0]))
        for part, length in zip(parts, lengths, strict=True):
            expected = (length + extra, *(part.shape[1:] if self._is_encoded else row))
            if (part.shape, part.dtype) != (expected, first.dtype):
                raise DemoError(
                    f"{part.name} is {part.dtype} {part.shape}, expected {first.dtype} {expected}: a row for "
                    "each action, and the same type and columns in all episodes; repair or remove the episode"
                )

    def find_faults(self, frames: int, start: int = 0) -> Iterator[str]:
        """Describe missing and damaged parts of the frames `start` to `frames`."""
        for (begin, end), part in zip(pairwise(self._bounds), self._parts, strict=True):
            if start < end and begin < frames:
                yield from part.find_faults(min(frames, end) - begin, max(start - begin, 0))

    def read(self, start: int, stop: int) -> Numbers:
        """Read the frames `start` to `stop`, from one part after the other."""
        self.check_size((stop - start) * self.width, f"{stop - start} frames")
        frames = np.empty((stop - start, *self.shape[1:]), self.dtype)
        for k in range(bisect_right(self._bounds, start) - 1, bisect_left(self._bounds, stop)):
            part, begin = self._parts[k], self._bounds[k]
            first, last = max(start, begin), min(stop, self._bounds[k + 1])
            rows = part.read(first - begin, last - begin)
            if self._is_encoded:
                images = [self._decode(row, part, i) for i, row in enumerate(rows, first - begin)]
                rows = np.reshape(images, (-1, *self.shape[1:]))
            frames[first - start : last - start] = rows
        return frames

    def _decode(self, content: Numbers | bytes, part: SourceArray, row: int) -> Numbers:
        name = f"{part.name}, row {row},"
        pixels = decode_image(content, name)
        if self.shape and (pixels.shape, pixels.dtype) != (self.shape[1:], self.dtype):
            raise DemoError(f"{name} is {pixels.dtype} {pixels.shape}, not {self.dtype} {self.shape[1:]}")
        return pixels


def open_parts(
    path: Path, groups: Sequence[Group], is_required: Callable[[str], object], **settings: Any
) -> MemorySource:
    """Open groups as one source; arrays that are not required need a row for each frame of every group."""
    starts = np.cumsum([0, *(group.frames for group in groups)])
    ends = np.concatenate([group.ends + start for group, start in zip(groups, starts, strict=False)])
    common = set.intersection(*({n for n, a in g.arrays.items() if _fits(a, g.frames)} for g in groups))
    required = {name for group in groups for name in group.arrays if is_required(name)}
    arrays = {name: partial(_join_parts, name, groups) for name in required | common}
    return MemorySource(path, arrays=arrays, ends=ends, **settings)


def find_ends(arrays: dict[str, SourceArray], frames: int, used: Collection[str] = ()) -> Ints | None:
    """Remove the `EPISODE_ARRAYS` that are not `used`, and return one past the last frame of each episode.

    Return None if they divide nothing, but raise `DemoError` if another array looks as if it did.
    """
    ends: list[tuple[str, Ints]] = []
    for kind, names in EPISODE_ARRAYS.items():
        parts = [arrays.pop(name) for name in names if name in arrays and name not in used]
        is_needed = parts and not (kind == "dones" and ends)  # a success may be marked in any frame
        if is_needed and len(kind_ends := _read_ends(kind, parts, frames)):
            ends.append((parts[0].name, kind_ends))
    for name, other_ends in ends[1:]:
        first, first_ends = ends[0]
        if not np.array_equal(other_ends, first_ends):
            raise DemoError(f"{name} contradicts {first.partition(' in ')[0]}; correct or remove one of them")
    if ends:
        return ends[0][1]
    for array in arrays.values():
        is_short = 1 < sum(array.shape[:1]) <= frames // MIN_STEPS + 1
        if is_short and array.dtype.kind in "iuf" and array.width == 1:
            values = read_whole(array).ravel()
            values = values[int(values[0] == 0) :]  # some begin with the start of the first episode
            kind = "lengths" if values.sum() == frames else "ends" if values[-1] == frames else ""
            if kind and (values > 0).all():
                raise DemoError(
                    f"{array.name} looks like the {kind} of {len(values)} episodes, and nothing else says "
                    f"where they end: call it {EPISODE_ARRAYS[kind][0]}"
                )
    return None


def _read_ends(kind: str, parts: Sequence[SourceArray], frames: int) -> Ints:
    """Return one past the last frame of each episode, from arrays of a kind of `EPISODE_ARRAYS`.

    Flags of which none is set give no ends.
    """
    name, last = parts[0].name, frames
    if kind in ("episode", "dones"):  # a number for each frame
        checked = [PartedArray(part.name, [part], [frames]) for part in parts]
        if wide := [part for part in checked if part.width != 1]:
            raise DemoError(f"{wide[0].name} has shape {wide[0].shape}, expected a number for each frame")
        rows = [part.read_checked().ravel() for part in checked]
    else:
        values = read_whole(parts[0])
    if kind == "episode":
        ends = np.append(np.flatnonzero(np.diff(rows[0])) + 1, frames)
    elif kind == "dones":
        ends = np.flatnonzero(np.any(rows, axis=0)) + 1
        if len(ends) and frames - ends[-1] >= MIN_STEPS:
            ends = np.append(ends, frames)
        last = int(ends[-1]) if len(ends) else 0  # a single frame behind the last end is left out
    elif kind == "starts":
        starts = np.flatnonzero(values) if len(values) == frames else values
        if not len(starts) or starts[0] != 0:
            raise DemoError(f"{name}: the first episode has to start at frame 0")
        ends = np.append(starts[1:], frames)
    elif kind == "lengths":
        ends = np.cumsum(values, dtype=None if values.dtype.kind in "f" else np.int64)
    else:
        ends = values
    try:
        return check_ends(ends, last) if last else ends
    except DemoError as error:
        raise DemoError(f"{name}: {error}") from None


def read_whole(array: SourceArray) -> Numbers:
    """Read an array of any length into memory."""
    return PartedArray(array.name, [array], array.shape[:1] or [0]).read_checked()


def _join_parts(name: str, groups: Sequence[Group]) -> PartedArray:
    for group in groups:
        if name not in group.arrays:
            raise DemoError(
                f"{group.name} has no {name}, which other episodes have; it holds: "
                f"{', '.join(group.arrays)}; repair or remove the episode"
            )
    return PartedArray(name, [group.arrays[name] for group in groups], [group.frames for group in groups])


def decode_image(content: Numbers | bytes, name: str) -> Numbers:
    """Decode a JPEG or PNG, which padding may follow, to (height, width, …)."""
    pillow = import_optional("PIL.Image", "plot")
    damaged = f"{name} is not an undamaged JPEG or PNG, restore it from the original"
    with wrap_read_errors(damaged), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        image = pillow.open(io.BytesIO(bytes(content)), formats=("JPEG", "PNG"))
        return np.asarray(image.convert("RGB") if image.mode in ("L", "P", "CMYK") else image)


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers in names by their value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def list_files(path: Path, suffixes: Collection[str]) -> list[Path]:
    """Return a file, or the files of a folder with one of these suffixes in the order of their numbers."""
    files = path.iterdir() if path.is_dir() else [path]
    return sorted((f for f in files if f.suffix in suffixes), key=lambda file: natural_key(file.name))


def _fits(array: SourceArray, frames: int) -> bool:
    return array.shape[:1] == (frames,) and 0 not in array.shape and array.dtype.kind in "biuf"
