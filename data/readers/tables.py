"""Folders of csv or npz files, described by `dataset.toml`, and single npz files.

rate_hz = 50
observations = ["q0", "q1"]    # columns of csv files, arrays of npz files
actions = ["u0", "u1"]
angles = ["q1"]                # optional: observations that are angles in radians

A file is an episode, unless a column or array of a usual name divides it, see `EPISODE_ARRAYS`.
"""

import csv
import io
import math
import zipfile
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from nsde_policy.bounds import Positive
from nsde_policy.config import BaseConfig, require
from nsde_policy.errors import DemoError, wrap_read_errors
from nsde_policy.files import get_max_unpacked, open_regular, read_file

from ..roles import find_roles
from ..source import MemoryArray, MemorySource, SourceArray, check_array_count
from ..types import Numbers, is_same_rate
from .base import Reader
from .dataset_toml import DATASET_FILE, get_dataset_format, load_dataset_toml, suggest_dataset_toml
from .groups import EPISODE_ARRAYS, Group, find_ends, list_files, open_parts, read_whole
from .registry import register_reader

KINDS = (".csv", ".npz")
USUAL_NAMES = (("state", "states", "obs", "observations"), ("action", "actions"))
"""Names of observations and actions in a single npz file."""
TIME_NAMES = {"t", "time", "timestamp", "stamp"}
DIVIDERS = ("episode_ends", "episode_lengths", "episode_starts", "dones")
"""Settings that name the array which divides frames into episodes; also usual names of such arrays."""
MOST_LOADED = 4
"""Arrays of npz files that stay in memory for the next read."""
LoadMember = Callable[[Path, str], Numbers]


@dataclass(frozen=True)
class TablesConfig(BaseConfig):
    """Settings in `dataset.toml` of a folder of csv or npz files."""

    rate_hz: Positive
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    angles: tuple[str, ...] = ()
    format: str = ""
    episode_ends: str = ""
    """Name of an array that divides frames into episodes, if it has none of the usual names."""
    episode_lengths: str = ""
    episode_starts: str = ""
    dones: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = (*self.observations, *self.actions)
        require(self, bool(self.observations and self.actions), "name an observation and an action")
        require(self, len({*names}) == len(names), f"a name is listed twice: {', '.join(names)}")


@register_reader
class TablesReader(Reader):
    """Reader of folders of csv or npz files, and of single ones."""

    name = "tables"

    def probe(self, path: Path) -> bool:
        """Recognise csv and npz files, and folders of them that are not described as another format."""
        is_other = path.is_dir() and get_dataset_format(path) not in (None, "", "csv", "npz")
        return bool(list_files(path, KINDS)) and not is_other

    def open(self, path: Path) -> MemorySource:
        """Open a single npz file, or the files that `dataset.toml` next to them describes."""
        folder, files = path if path.is_dir() else path.parent, list_files(path, KINDS)
        if not (folder / DATASET_FILE).exists():
            if path.suffix == ".npz" and not path.is_dir():
                return _open_single_npz(path)
            raise DemoError(_describe_template(folder, files[0]))
        return _open_tables(path, files, load_dataset_toml(folder, TablesConfig))


def _describe_template(folder: Path, first: Path) -> str:
    """Describe the `dataset.toml` that a folder lacks, with the columns or arrays of its first file."""
    arrays = _read_csv(first) if first.suffix == ".csv" else open_npz(first, _load_member)
    shapes = {name: array.shape for name, array in arrays.items()}
    observations, actions = find_roles(
        {k: v for k, v in shapes.items() if k.lower() not in {*TIME_NAMES, "frame", "index", "episode"}}
    )
    actions = ["?"] if set(actions) >= set(observations) else actions
    held = f"{first.name} holds: {', '.join(shapes) or 'nothing'}"
    return suggest_dataset_toml(folder, held, rate_hz=20, observations=observations, actions=actions)


def _read_csv(path: Path, columns: Collection[str] = ()) -> dict[str, SourceArray]:
    """Read some columns of a csv file, and those of the time; the others are empty."""
    with wrap_read_errors(f"{path} cannot be read"):
        text = read_file(path, get_max_unpacked(), error=DemoError).decode("utf-8-sig")
        header = text.partition("\n")[0]
        separator = max(",;\t", key=header.count)
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        names = [name.strip() for name in next(rows, [])]
        if names and not names[0] and all(names[1:]):
            raise DemoError(f"{path} has a first column without a name, as pandas writes: use index=False")
        if len(set(names)) < len(names) or not names or not all(names):
            raise DemoError(f"{path} begins with {header!r:.80}, expected a different name for each column")
        values = {name: array("d") for name in names if name in columns or name in TIME_NAMES}
        for fields in filter(None, rows):
            if len(fields) != len(names):
                raise DemoError(
                    f"{path} has {len(fields)} values in line {rows.line_num}, expected {len(names)} as in "
                    f"the header; quote text that contains {separator!r}, or correct the header"
                )
            for name, field in zip(names, fields, strict=True):
                if name in values:
                    values[name].append(_parse_number(field))
                    if name in columns and math.isnan(values[name][-1]):
                        raise DemoError(
                            f"{path} has {field!r:.40} in line {rows.line_num} of {name}, expected a number"
                        )
    if rows.line_num < 2:
        raise DemoError(f"{path} has no rows below its header")
    arrays = {name: np.array(values.get(name, ())) for name in names}
    return {name: MemoryArray(f"{name} in {path}", arrays[name], [name]) for name in names}


def _parse_number(text: str) -> float:
    """Return a number or flag; NaN if it is neither."""
    try:
        return float({"true": 1, "false": 0}.get(text.strip().lower(), text))
    except ValueError:
        return math.nan


def _open_tables(path: Path, files: Sequence[Path], settings: TablesConfig) -> MemorySource:
    """Open files of one or more episodes; the arrays of npz files are read on demand."""
    used = {*settings.observations, *settings.actions}
    flags = {name for names in EPISODE_ARRAYS.values() for name in names}
    dividers = {key: getattr(settings, key) for key in DIVIDERS if getattr(settings, key)}
    groups, load = list[Group](), lru_cache(MOST_LOADED)(_load_member)
    for file in files:
        named = {*used, *dividers.values()}
        arrays = _read_csv(file, named | flags) if file.suffix == ".csv" else open_npz(file, load)
        if missing := named - arrays.keys():
            raise DemoError(
                f"{file} has no {', '.join(sorted(missing))}, it holds: {', '.join(arrays) or 'nothing'}; "
                f"correct {DATASET_FILE} or the file"
            )
        frames = _count_frames(arrays[settings.actions[0]])
        arrays |= {key: arrays.pop(name) for key, name in dividers.items()}
        ends = find_ends(arrays, frames, used)
        groups.append(Group(str(file), arrays, np.array([frames]) if ends is None else ends))
    if unknown := set(settings.angles) - set(settings.observations):
        raise DemoError(f"{DATASET_FILE} lists {sorted(unknown)} in angles, which are no observations")
    for name in settings.angles:
        groups[0].arrays[name].angles = tuple(range(groups[0].arrays[name].width))
    source = open_parts(
        path,
        groups,
        used.__contains__,
        format=f"{files[0].suffix[1:]} files",
        rate_hz=settings.rate_hz,
        conventions={"state": settings.observations, "action": settings.actions},
    )
    source.notes = tuple(_check_time(groups, settings.rate_hz))
    return source


def _count_frames(actions: SourceArray) -> int:
    """Return the rows of an array of actions; raise `DemoError` if its rows are whole episodes."""
    if len(actions.shape) > 2:
        raise DemoError(
            f"{actions.name} has shape {actions.shape}, expected (frames, columns); put the episodes one "
            "after the other, without padding, and save how long they are as episode_lengths"
        )
    return sum(actions.shape[:1])


def _check_time(groups: Sequence[Group], rate_hz: float) -> Iterator[str]:
    """Describe a time that contradicts the rate; it counts frames, or parts of seconds."""
    for name in TIME_NAMES & groups[0].arrays.keys():
        times = [group.arrays[name] for group in groups if name in group.arrays]
        if all(time.dtype.kind in "iuf" and len(time.shape) == 1 for time in times):
            step = float(np.median(np.concatenate([np.diff(read_whole(time)) for time in times])))
            rates = [unit / step for unit in (1, 1e3, 1e6, 1e9)] if step > 0 and step != 1 else []
            if rates and not any(is_same_rate(rate, rate_hz) for rate in rates):
                nearest = min(rates, key=lambda rate: abs(math.log(rate / rate_hz)))
                yield (
                    f"{name} says {nearest:.3g} Hz, {DATASET_FILE} says {rate_hz:g} Hz, which is used: "
                    "correct rate_hz if the times are right"
                )


def _open_single_npz(path: Path) -> MemorySource:
    """Open a file that says where episodes end."""
    arrays = open_npz(path, lru_cache(MOST_LOADED)(_load_member))
    state, action = (next((name for name in names if name in arrays), names[0]) for names in USUAL_NAMES)
    held = ", ".join(arrays) or "nothing"
    if action in arrays:
        frames = _count_frames(arrays[action])
    else:
        frames = max((sum(array.shape[:1]) for array in arrays.values()), default=0)
    ends = find_ends(arrays, frames)
    if ends is None:
        raise DemoError(
            f"{path} holds {held}, expected an array that divides the frames into episodes, such as "
            f"episode_ends, traj_lengths or dones; docs/data.md lists the names"
        )
    return open_parts(
        path,
        [Group(str(path), arrays, ends)],
        {state, action}.__contains__,
        format="npz",
        conventions={"state": (state,), "action": (action,)},
    )


class NpzArray(SourceArray):
    """A member of an npz file; `load` returns it as a whole."""

    def __init__(self, path: Path, key: str, member: IO[bytes], load: LoadMember) -> None:
        self._place, self._load, self.name = (path, key), load, f"{key} in {path}"
        is_first = np.lib.format.read_magic(member) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        self.shape, _, self.dtype = read(member)

    def read(self, start: int, stop: int) -> Numbers:
        """Read some rows; numpy reads the whole array."""
        self.check_size(math.prod(self.shape), "the array")
        with wrap_read_errors(f"{self.name} cannot be read, restore it"):
            return self._load(*self._place)[start:stop]


def open_npz(path: Path, load: LoadMember) -> dict[str, SourceArray]:
    """Return the arrays of an npz file by name; only their headers are read."""
    with wrap_read_errors(f"{path} is not an undamaged npz file"), _open_archive(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        check_array_count(len(names), path)
        return {name: NpzArray(path, name, archive.open(f"{name}.npy"), load) for name in names}


def _load_member(path: Path, key: str) -> Numbers:
    """Read an array of an npz file as a whole, which is the only way numpy unpacks one; never a pickle."""
    with _open_archive(path) as archive, archive.open(f"{key}.npy") as member:
        array: Numbers = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _open_archive(path: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(open_regular(path, error=DemoError))
