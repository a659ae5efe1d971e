"""Opened demonstrations of any format: named arrays whose rows are frames, and where episodes end."""

import abc
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from nsde_policy.errors import DemoError, suggest
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked

from .types import (
    ActionLimits,
    Floats,
    Ints,
    Numbers,
    check_ends,
    check_finite,
    check_lengths,
    convert_to_float32,
)

MAX_COLUMNS = 4096
"""Maximum number of columns that are loaded into memory; wider arrays are images and read lazily."""
MAX_ARRAYS = 500
"""Most arrays of demonstrations: each is opened on its own, which takes milliseconds."""
MAX_DEPTH = 8
"""Most levels of folders or groups in which arrays are found; a link may lead back to a folder above it."""
Progress = Callable[[range], Iterable[int]]
"""Wraps first frames of blocks, or episodes, for a progress bar."""
READ_BYTES = 16 * 2**20
"""Frames are read in blocks of about this size unless the format has larger ones."""


def get_short_name(name: str) -> str:
    """Return the last part of the name of an array: top of observation.images.top, or of obs/top."""
    return re.split(r"[./]", name)[-1]


def check_array_count(count: int, path: Path) -> None:
    """Raise `DemoError` for more arrays than demonstrations may have."""
    if count > MAX_ARRAYS:
        raise DemoError(
            f"{path} holds {count} arrays, the limit is {MAX_ARRAYS}; join columns into one array"
        )


def parse_action_space(space: Any, path: Path) -> ActionLimits | None:
    """Return the limits that a file records, {"low": […], "high": […]}; null is no limit."""
    if space is None:
        return None
    try:
        low = tuple(-math.inf if value is None else float(value) for value in space["low"])
        high = tuple(math.inf if value is None else float(value) for value in space["high"])
        is_valid = all(a <= b and a < math.inf and b > -math.inf for a, b in zip(low, high, strict=True))
    except (KeyError, TypeError, ValueError, OverflowError):
        is_valid = False
    if not is_valid:
        raise DemoError(
            f"the action_space of {path} is {space!r:.80}, expected lists 'low' and 'high' "
            "of as many numbers as an action has, low below high: correct it or remove it"
        )
    return low, high


class SourceArray(abc.ABC):
    """An array whose rows are frames, (frames, …), read on demand."""

    name: str
    """Name in messages, such as data/state."""
    shape: tuple[int, ...]
    """Shape of the array, (frames, …)."""
    dtype: np.dtype[Any]
    """Type of the stored values."""
    angles: tuple[int, ...] = ()
    """Columns that are angles in radians."""
    columns: tuple[str, ...] = ()
    """Names of the columns; empty if the format does not say."""

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Numbers:
        """Read the frames `start` to `stop`, (stop − start, …); raise `DemoError` if they are damaged."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Numbers:
        """Read consecutive frames."""
        start, stop, _ = rows.indices(len(self))
        return self.read(start, stop)

    @property
    def width(self) -> int:
        """Number of columns of the flattened array."""
        return math.prod(self.shape[1:])

    @property
    def rows_per_read(self) -> int:
        """Number of frames to read together."""
        return max(1, READ_BYTES // (self.width * self.dtype.itemsize))

    def find_faults(self, frames: int, start: int = 0) -> Iterator[str]:
        """Describe missing and damaged parts of the frames `start` to `frames` without decoding them."""
        return iter(())

    def check_parts(self, frames: int) -> None:
        """Raise `DemoError` for missing and damaged parts of the first `frames` frames."""
        for fault in self.find_faults(frames):
            raise DemoError(f"{fault}; restore it from the original")

    def read_checked(self, frames: int | None = None) -> Numbers:
        """Read the first `frames` frames, or all, after checking their size and their parts."""
        frames = self.shape[0] if frames is None else frames
        self.check_size(frames * self.width, f"{frames} frames")
        self.check_parts(frames)
        return self.read(0, frames)

    def check_size(self, count: int, what: str) -> None:
        """Raise `DemoError` if `count` values exceed the size limit (`MAX_UNPACKED_VARIABLE`)."""
        size, limit = count * self.dtype.itemsize, get_max_unpacked()
        if size > limit:
            raise DemoError(
                f"{self.name}: {what} would take {size} bytes, the limit is {limit}; set "
                f"{MAX_UNPACKED_VARIABLE} if the store is what you expect"
            )


class MemoryArray(SourceArray):
    """An array that is in memory, or that numpy maps from a file."""

    def __init__(self, name: str, values: Numbers, columns: Sequence[str] = ()) -> None:
        self.name, self.values, self.columns = name, values, tuple(columns)
        self.shape, self.dtype = values.shape, values.dtype

    def read(self, start: int, stop: int) -> Numbers:
        """Return the frames `start` to `stop`."""
        return self.values[start:stop]


class Source(abc.ABC):
    """An open set of demonstrations; a context manager, because some formats keep a file open.

    Arrays have the names of the format. `state` and `action` are what training takes by default; a format
    that calls them otherwise says so in `conventions`.
    """

    path: Path
    format: str
    """Human-readable name and version of the format."""
    rate_hz: float | None = None
    """Frames per second; None if the files do not say."""
    act_limits: ActionLimits | None = None
    """Smallest and largest actions; None if the files do not say."""
    conventions: Mapping[str, tuple[str, ...]] = {}
    """Arrays, side by side, that `state` and `action` stand for where a format has other names."""
    attributes: Mapping[str, Any] = {}
    """What the files say about themselves, JSON: provenance, task, licence."""
    accept_omitted_chunks: bool = False
    """Read the fill value where a zarr store leaves out a part of an array; otherwise that is damage."""
    ignores_rest: bool = False
    """Whether frames behind the last episode end are left out; otherwise they are an error."""
    notes: tuple[str, ...] = ()
    """Human-readable notes on how the files were read, one line each."""

    @abc.abstractmethod
    def find_arrays(self) -> list[str]:
        """Return the names of all arrays with a row for each frame, readable or not."""

    @abc.abstractmethod
    def open_array(self, name: str) -> SourceArray:
        """Open an array; raise `DemoError` if it does not exist or cannot hold frames."""

    @abc.abstractmethod
    def read_ends(self) -> Ints:
        """Return one past the last frame of each episode, (episodes,)."""

    def read_info(self) -> dict[str, Numbers]:
        """Return numbers that the files record for each episode, such as its seed, (episodes,) each."""
        return {}

    def open_episodes(self, names: Sequence[str]) -> tuple[Ints, list[SourceArray]]:
        """Read the episode ends and open the named arrays, which must have the same number of frames."""
        ends, arrays = self.read_ends(), [self.open_array(name) for name in names]
        lengths = {array.name: array.shape[0] for array in arrays}
        if self.ignores_rest and ends.dtype.kind in "iu":
            lengths = {name: min(length, int(ends.flat[-1])) for name, length in lengths.items()}
        check_lengths(lengths)
        return check_ends(ends, max(lengths.values(), default=0)), arrays

    def resolve(self, key: str) -> tuple[str, ...]:
        """Return the arrays that a name, or the last part of one, stands for, side by side."""
        names = self.find_arrays()
        if key in names or key in self.conventions:
            return (key,) if key in names else self.conventions[key]
        similar = tuple(name for name in names if get_short_name(name) == key)
        return similar if len(similar) == 1 else (key,)

    def describe_missing(self, name: str) -> str:
        """Describe a missing array and list the arrays there are."""
        names = self.find_arrays()
        similar = suggest(name, [*names, *map(get_short_name, names)])
        problem = f"no array {name!r} in {self.path}{similar}; it holds: {', '.join(names) or 'none'}"
        return "; ".join((problem, *self.notes))

    def close(self) -> None:  # noqa: B027
        """Close the files that are open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_columns(array: SourceArray, ends: Ints) -> Floats:
    """Read a low-dimensional array, flattened to (frames, columns), all finite."""
    if array.width > MAX_COLUMNS:
        raise DemoError(
            f"{array.name} has {array.width} numbers a frame, expected at most {MAX_COLUMNS}; "
            "correct its shape, or name it in --images if it holds pictures"
        )
    values = array.read_checked(int(ends[-1]))
    columns = convert_to_float32(values.reshape(-1, array.width), array.name)
    check_finite(columns, array.name, ends)
    return columns


def join_columns(arrays: Sequence[SourceArray], ends: Ints) -> MemoryArray:
    """Read arrays and put them side by side; a column without a name is called by its array and its place."""
    values, angles = [], []
    names: list[str] = []
    for array in arrays:
        values.append(read_columns(array, ends))  # which refuses arrays of very many columns
        angles += [len(names) + column for column in array.angles]
        names += array.columns or [
            f"{array.name.rpartition('/')[2]}[{column}]" for column in range(array.width)
        ]
    joined = MemoryArray("columns", np.concatenate(values, axis=1), names)
    joined.angles = tuple(angles)
    return joined


class MemorySource(Source):
    """Demonstrations in memory: arrays, or functions that open them."""

    def __init__(
        self,
        path: Path,
        format: str,
        arrays: Mapping[str, SourceArray | Callable[[], SourceArray]],
        ends: Sequence[int] | Ints,
        *,
        rate_hz: float | None = None,
        conventions: Mapping[str, tuple[str, ...]] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.format, self._arrays, self._ends = path, format, arrays, np.asarray(ends, np.int64)
        self.rate_hz, self.conventions = rate_hz, conventions or {}
        self.attributes: dict[str, Any] = dict(attributes or {})

    def find_arrays(self) -> list[str]:
        """Return the names of all arrays."""
        return sorted(self._arrays)

    def open_array(self, name: str) -> SourceArray:
        """Return the array of this name."""
        if name not in self._arrays:
            raise DemoError(self.describe_missing(name))
        array = self._arrays[name]
        return array if isinstance(array, SourceArray) else array()

    def read_ends(self) -> Ints:
        """Return one past the last frame of each episode."""
        return self._ends

    def close(self) -> None:
        """Close the files of arrays that nothing else reads."""
        self._arrays = {}


class DerivedSource(MemorySource):
    """Arrays made from the arrays of another source, which says everything else."""

    def __init__(
        self,
        source: Source,
        arrays: Mapping[str, SourceArray | Callable[[], SourceArray]],
        ends: Sequence[int] | Ints,
        *,
        rate_hz: float | None = None,
    ) -> None:
        super().__init__(
            source.path,
            source.format,
            arrays,
            ends,
            rate_hz=rate_hz or source.rate_hz,
            conventions=source.conventions,
            attributes=source.attributes,
        )
        self.act_limits, self.notes, self._source = source.act_limits, source.notes, source

    def read_info(self) -> dict[str, Numbers]:
        """Return the numbers recorded for the episodes."""
        return self._source.read_info()

    def close(self) -> None:
        """Close the original files."""
        self._source.close()
