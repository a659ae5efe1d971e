"""Folders of csv or npz files, described by `dataset.toml`, and single npz files.

rate_hz = 50
observations = ["q0", "q1"]    # columns of csv files, arrays of npz files
actions = ["u0", "u1"]
angles = ["q1"]                # optional: observations that are angles in radians

A file is an episode, unless one of these columns or arrays divides it. Their usual names are enough.

episode = "trial"              # a new number begins a new episode
ends = "stops"                 # one past the last frame of each episode, or flags of last frames
lengths = "sizes"              # number of frames of each episode
starts = "begins"              # first frame of each episode, or flags of first frames
dones = "finished"             # flags of last frames
"""

import csv
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from nsde_policy.bounds import Positive
from nsde_policy.config import BaseConfig, require
from nsde_policy.errors import DemoError, wrap_read_errors
from nsde_policy.files import get_max_unpacked, open_regular, read_file

from ..roles import find_roles
from ..source import MemoryArray, MemorySource, SourceArray
from ..types import Numbers, check_ends
from .base import Reader
from .dataset_toml import DATASET_FILE, get_dataset_format, load_dataset_toml
from .groups import (
    EPISODE_ARRAYS,
    Group,
    find_ends,
    keep_open,
    list_files,
    open_parts,
    read_whole,
)
from .registry import register_reader

KINDS = (".csv", ".npz")
USUAL_NAMES = (("state", "states", "obs", "observations"), ("action", "actions", "acts"))
"""Names of observations and actions in a single npz file."""
TIME_COLUMNS = ("t", "time", "timestamp", "stamp", "frame", "index", "episode")

OpenMember = Callable[[Path, str], IO[bytes]]


@dataclass(frozen=True)
class TablesConfig(BaseConfig):
    """Settings in `dataset.toml` of a folder of csv or npz files."""

    rate_hz: Positive
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    angles: tuple[str, ...] = ()
    episode: str = ""
    ends: str = ""
    lengths: str = ""
    starts: str = ""
    dones: str = ""
    format: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = (*self.observations, *self.actions)
        require(self, bool(self.observations and self.actions), "name an observation and an action")
        require(self, len({*names}) == len(names), f"a name is listed twice: {', '.join(names)}")

    @property
    def episode_arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the arrays that divide files into episodes, by what they hold; {} for the usual ones."""
        return {kind: (getattr(self, kind),) for kind in EPISODE_ARRAYS if getattr(self, kind)}


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
    arrays = _read_csv(first) if first.suffix == ".csv" else open_npz(first, open_npz_member)
    shapes = {name: array.shape for name, array in arrays.items()}
    observations, actions = find_roles({k: v for k, v in shapes.items() if k.lower() not in TIME_COLUMNS})
    suggested = json.dumps(["?"] if set(actions) >= set(observations) else actions)
    return (
        f"{folder} has no {DATASET_FILE}, and {first.name} holds: {', '.join(shapes) or 'nothing'}; write "
        f"{folder / DATASET_FILE} with three lines such as `rate_hz = 20`, "
        f"`observations = {json.dumps(observations)}`, `actions = {suggested}`"
    )


def _read_csv(
    path: Path, columns: Collection[str] = (), flags: Collection[str] = ()
) -> dict[str, SourceArray]:
    """Read some columns of a csv file, and those that may hold flags; the others are empty."""
    with wrap_read_errors(f"{path} cannot be read"):
        lines = read_file(path, get_max_unpacked(), error=DemoError).decode("utf-8-sig").splitlines() or [""]
        sep = max(",;\t", key=lines[0].count)
        names = [name.strip(' "') for name in lines[0].split(sep)]
        if len(set(names)) < len(names) or not all(names) or not any(map(str.strip, lines[1:])):
            raise DemoError(f"{path} begins with {lines[0]!r:.80}, expected names of columns, and rows below")
        for number, line in enumerate(lines[1:], 2):
            fields = next(csv.reader([line], delimiter=sep, strict=True), [])
            if fields and len(fields) != len(names):
                raise DemoError(
                    f"{path} has {len(fields)} values in line {number}, expected {len(names)} as in the "
                    f"header; quote text that contains {sep!r}, or correct the header"
                )
        used = [place for place, name in enumerate(names) if name in columns or name in flags]
        values = np.loadtxt(
            lines[1:],
            comments=None,
            delimiter=sep,
            converters={place: _parse_flag for place in used if names[place] in flags},
            usecols=used,
            ndmin=2,
            encoding="utf-8",
            quotechar='"',
        )
    read = {names[place]: values[:, i] for i, place in enumerate(used)}
    return {n: MemoryArray(f"{n} in {path}", read.get(n, np.zeros(0)), [n]) for n in names}


def _parse_flag(text: str) -> float:
    return float({"true": 1, "false": 0}.get(text.strip().lower(), text))


def _open_tables(path: Path, files: Sequence[Path], settings: TablesConfig) -> MemorySource:
    """Open files of one or more episodes; the arrays of npz files are read on demand."""
    open_member = keep_open(open_npz_member)
    used = {*settings.observations, *settings.actions}
    marks = settings.episode_arrays or {
        kind: tuple(name for name in names if name not in used) for kind, names in EPISODE_ARRAYS.items()
    }
    flags = {name for names in marks.values() for name in names}
    groups = []
    for file in files:
        arrays = _read_csv(file, used, flags) if file.suffix == ".csv" else open_npz(file, open_member)
        if missing := used.union(*settings.episode_arrays.values()) - arrays.keys():
            raise DemoError(
                f"{file} has no {', '.join(sorted(missing))}, it holds: {', '.join(arrays) or 'nothing'}; "
                f"correct {DATASET_FILE} or the file"
            )
        frames = sum(arrays[name].shape[0] for name in settings.actions[:1] if arrays[name].shape)
        ends = find_ends(arrays, frames, marks)
        groups.append(Group(str(file), arrays, np.array([frames]) if ends is None else ends))
    if unknown := set(settings.angles) - set(settings.observations):
        raise DemoError(f"{DATASET_FILE} lists {sorted(unknown)} in angles, which are no observations")
    for name in settings.angles:
        groups[0].arrays[name].angles = tuple(range(groups[0].arrays[name].width))
    conventions = {"state": settings.observations, "action": settings.actions}
    kind, rate_hz = f"{files[0].suffix[1:]} files", settings.rate_hz
    return open_parts(path, groups, used.__contains__, format=kind, rate_hz=rate_hz, conventions=conventions)


def _open_single_npz(path: Path) -> MemorySource:
    """Open a file that says where episodes end, or of `imitation`; its `infos`, a pickle, are not loaded."""
    arrays = open_npz(path, keep_open(open_npz_member))
    state, action = (next((name for name in names if name in arrays), names[0]) for names in USUAL_NAMES)
    if is_imitation := {"obs", "acts", "indices"} <= arrays.keys():
        frames = int(sum(arrays["acts"].shape[:1]))
        ends = check_ends(np.array([*read_whole(arrays["indices"]).tolist(), frames]), frames)
        obs, after = read_whole(arrays["obs"]), ends + np.arange(len(ends))
        if len(obs) != after[-1] + 1:
            expected = f"{after[-1] + 1}, one for each action and one after each episode"
            raise DemoError(f"{path} has {len(obs)} obs, expected {expected}")
        arrays = {"obs": MemoryArray("obs", np.delete(obs, after, axis=0)), "acts": arrays["acts"]}
    else:
        held = ", ".join(arrays) or "nothing"
        counted = [arrays[action]] if action in arrays else arrays.values()
        frames = max((array.shape[0] for array in counted if array.shape), default=0)
        if (divided := find_ends(arrays, frames)) is None:
            raise DemoError(
                f"{path} holds {held}, expected an array that divides the frames into episodes, such as "
                f"episode_ends, traj_lengths or dones; or describe it in {DATASET_FILE} in the same folder"
            )
        ends = divided
    return open_parts(
        path,
        [Group(str(path), arrays, ends)],
        {state, action}.__contains__,
        format="imitation npz" if is_imitation else "npz",
        conventions={"state": (state,), "action": (action,)},
    )


class NpzArray(SourceArray):
    """A member of an npz file."""

    def __init__(self, path: Path, key: str, open_member: OpenMember) -> None:
        self._place, self._open, self.name = (path, f"{key}.npy"), open_member, f"{key} in {path}"
        member = open_member(*self._place)
        is_first = np.lib.format.read_magic(member) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers that Python 2 wrote
            self.shape, self._is_fortran, self.dtype = read(member)
        self._start = member.tell()
        self.size = self._start + math.prod(self.shape) * self.dtype.itemsize
        """Bytes of the member, as its header declares them."""

    def read(self, start: int, stop: int) -> Numbers:
        """Read some rows; of columns that are contiguous, all."""
        with wrap_read_errors(f"rows {start} to {stop} of {self.name} cannot be read, restore them"):
            first, rows = (0, self.shape[0]) if self._is_fortran else (start, stop - start)
            self.check_bytes(rows * self.width, f"{rows} rows")
            size = self.dtype.itemsize * self.width
            member = self._open(*self._place)
            member.seek(self._start + first * size)
            values = np.frombuffer(member.read(rows * size), self.dtype)
            values = values.reshape((rows, *self.shape[1:]), order="F" if self._is_fortran else "C")
            return values[start - first : stop - first]


def open_npz(path: Path, open_member: OpenMember) -> dict[str, SourceArray]:
    """Return the arrays of an npz file by name; only their headers are read."""
    file = open_regular(path, error=DemoError)
    with wrap_read_errors(f"{path} is not an undamaged npz file"), zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: NpzArray(path, name, open_member) for name in names}
        for name, array in arrays.items():
            size = archive.getinfo(f"{name}.npy").file_size
            if size != array.size and array.dtype.kind != "O":  # pickles have any size
                raise DemoError(
                    f"{array.name} declares {array.dtype} {array.shape}, {array.size} bytes, but has {size}; "
                    "restore it from the original"
                )
        return dict(arrays)


def open_npz_member(path: Path, name: str) -> IO[bytes]:
    """Open a member of an npz file; the file is closed together with it."""
    return zipfile.ZipFile(open_regular(path, error=DemoError)).open(name)
