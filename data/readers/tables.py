"""Folders with a csv or npz file for each episode, described by `dataset.toml`, and single npz files.

rate_hz = 50
observations = ["q0", "q1"]    # columns of csv files, arrays of npz files
actions = ["u0", "u1"]
angles = ["q1"]                # optional: observations that are angles in radians
episode = "trial"              # optional: column that numbers the episodes of a csv file
files = "run_*.csv"            # optional: other files of the folder are ignored
"""

import fnmatch
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from nsde_policy.bounds import Positive
from nsde_policy.config import BaseConfig
from nsde_policy.data.dataset_toml import DATASET_FILE, get_dataset_format, load_dataset_toml
from nsde_policy.data.npz_arrays import Header, NpzArray, make_part, read_headers
from nsde_policy.data.parted_array import Part
from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.hdf5 import natural_key
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.roles import find_roles
from nsde_policy.data.source import MemoryArray, MemorySource, SourceArray
from nsde_policy.data.types import Numbers, check_ends
from nsde_policy.data.zarr_store.store import wrap_read_errors
from nsde_policy.errors import DemoError
from nsde_policy.files import get_max_unpacked, read_file

KINDS = (".csv", ".npz")
TIME_COLUMNS = ("t", "time", "timestamp", "stamp", "frame", "index", "episode")
"""Names of columns that a template does not suggest as observations."""


@dataclass(frozen=True)
class TablesConfig(BaseConfig):
    """Settings in `dataset.toml` of a folder of csv or npz files."""

    rate_hz: Positive
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    angles: tuple[str, ...] = ()
    episode: str = ""
    files: str = "*"
    format: Literal["", "csv", "npz"] = ""


@register_reader
class TablesReader(Reader):
    """Reader of folders of csv or npz files, and of single ones."""

    name = "tables"

    def probe(self, path: Path) -> bool:
        """Recognise csv and npz files, and folders of them that are not described as another format."""
        if not path.is_dir():
            return path.suffix in KINDS
        return bool(_list_tables(path)) and get_dataset_format(path) in (None, "", "csv", "npz")

    def open(self, path: Path) -> MemorySource:
        """Open a single npz file, or the files that `dataset.toml` next to them describes."""
        if not path.exists():
            raise DemoError(f"{path} does not exist")
        if path.suffix == ".npz" and path.is_file():
            return _open_npz(path)
        folder = path if path.is_dir() else path.parent
        files = [path] if path.is_file() else _list_tables(folder)
        if not (folder / DATASET_FILE).exists():
            raise DemoError(_describe_template(folder, files))
        settings = load_dataset_toml(folder, TablesConfig)
        files = [file for file in files if fnmatch.fnmatch(file.name, settings.files)]
        suffixes = {file.suffix for file in files}
        if len(suffixes) != 1 or f".{settings.format}" not in (".", *suffixes):
            raise DemoError(
                f"{folder} has {len(files)} files {settings.files!r} of the kinds {sorted(suffixes)}, "
                f"expected csv or npz files, one for each episode; choose them with files in {DATASET_FILE}"
            )
        return (_open_csv if suffixes == {".csv"} else _open_npz_folder)(path, files, settings)


def _list_tables(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix in KINDS]
    return sorted(found, key=lambda path: natural_key(path.name))


def _describe_template(folder: Path, files: Sequence[Path]) -> str:
    """Describe the `dataset.toml` that a folder lacks, with the columns or arrays of its first file."""
    first = files[0]
    if first.suffix == ".csv":
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_Csv(first).names, (1,))
    else:
        shapes = {name: header.shape for name, header in read_headers(first).items()}
    observations, actions = find_roles({k: v for k, v in shapes.items() if k.lower() not in TIME_COLUMNS})
    lines = (
        "rate_hz = HZ",
        f"observations = {json.dumps(observations)}",
        f"actions = {json.dumps(['?'] if set(actions) >= set(observations) else actions)}",
    )
    return (
        f"{folder} has no {DATASET_FILE}, and {first.name} holds: {', '.join(shapes) or 'nothing'}; write "
        f"{folder / DATASET_FILE} with three lines such as {', '.join(f'`{line}`' for line in lines)}"
    )


class _Csv:
    """A csv file with names of columns in its first line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = read_file(path, get_max_unpacked(), error=DemoError).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DemoError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})") from None
        self._lines = text.splitlines()
        header = self._lines[0] if self._lines else ""
        self._delimiter = max(",;\t", key=header.count)
        self.names = [name.strip().strip('"') for name in header.split(self._delimiter)]
        if len(set(self.names)) < len(self.names) or not all(self.names):
            raise DemoError(f"the first line of {path} is {header!r:.80}, expected a name for each column")

    def read(self, names: Sequence[str], dtype: type = float) -> Numbers:
        """Read columns, (rows, columns)."""
        for name in names:
            if name not in self.names:
                raise DemoError(
                    f"{self._path} has no column {name!r}, it holds: {', '.join(self.names)}; correct "
                    f"{DATASET_FILE} or the file"
                )
        if not any(line.strip() for line in self._lines[1:]):
            raise DemoError(f"{self._path} has no rows below the names of its columns")
        with wrap_read_errors(f"the rows below the names in {self._path} cannot be read"):
            return np.loadtxt(
                self._lines[1:],
                dtype,
                comments=None,
                delimiter=self._delimiter,
                usecols=[self.names.index(name) for name in names],
                ndmin=2,
                quotechar='"',
            )


def _open_csv(path: Path, files: Sequence[Path], settings: TablesConfig) -> MemorySource:
    """Read a file for each episode, or files with a column that numbers episodes."""
    names = {"state": settings.observations, "action": settings.actions}
    values: dict[str, list[Numbers]] = {key: [] for key in names}
    lengths: list[int] = []
    for file in files:
        table = _Csv(file)
        for key, columns in names.items():
            values[key].append(table.read(columns))
        lengths += _split_episodes(table, settings.episode, file) or [len(values["state"][-1])]
    arrays = {key: MemoryArray(key, np.concatenate(values[key]), names[key]) for key in names}
    _set_angles(list(arrays.values()), settings)
    return MemorySource(path, "csv files", arrays, np.cumsum(lengths), rate_hz=settings.rate_hz)


def _split_episodes(table: _Csv, column: str, file: Path) -> list[int]:
    """Return the lengths of the episodes that a column numbers; empty without one."""
    if not column:
        return []
    labels = table.read([column], str)[:, 0]
    starts = np.flatnonzero(np.r_[True, labels[1:] != labels[:-1]])
    if len(np.unique(labels)) < len(starts):
        raise DemoError(f"the rows of an episode in {file} are not in one block: sort them by {column!r}")
    return [int(length) for length in np.diff(starts, append=len(labels))]


def _open_npz_folder(path: Path, files: Sequence[Path], settings: TablesConfig) -> MemorySource:
    """Open a file for each episode; arrays that all of them have are read on demand."""
    parts: dict[str, list[Part]] = {}
    lengths = []
    wanted = dict.fromkeys((*settings.observations, *settings.actions))
    for file in files:
        headers = read_headers(file)
        for name in wanted:
            if name not in headers:
                raise DemoError(
                    f"{file} has no array {name!r}, it holds: {', '.join(headers) or 'nothing'}; correct "
                    f"{DATASET_FILE} or the file"
                )
        lengths.append((headers[settings.actions[0]].shape or (0,))[0])
        for name, header in headers.items():
            if name in wanted or _has_rows(header, lengths[-1]):
                parts.setdefault(name, []).append(make_part(file, name, header, lengths[-1]))
    arrays = {name: NpzArray(name, found) for name, found in parts.items() if len(found) == len(files)}
    _set_angles([arrays[name] for name in settings.observations], settings)
    conventions = {"state": settings.observations, "action": settings.actions}
    ends = np.cumsum(lengths)
    return MemorySource(path, "npz files", arrays, ends, rate_hz=settings.rate_hz, conventions=conventions)


def _open_npz(path: Path) -> MemorySource:
    """Open a file of `imitation`, or one with arrays and their `episode_ends`."""
    headers = read_headers(path)
    if {"obs", "acts", "indices"} <= headers.keys():
        return _open_imitation(path, headers)
    if "episode_ends" not in headers:
        raise DemoError(
            f"{path} holds {', '.join(headers) or 'nothing'}, expected episode_ends, one past the last frame "
            f"of each episode, with state and action; or a folder of such files with a {DATASET_FILE}"
        )
    ends = _read_member(path, "episode_ends", headers)
    frames = int(ends.flat[-1]) if ends.size else 0
    check_ends(ends, frames)
    parts = {
        name: make_part(path, name, header, header.shape[0] if header.shape else 0)
        for name, header in headers.items()
        if name != "episode_ends" and (name in ("state", "action") or _has_rows(header, frames))
    }
    arrays = {name: NpzArray(name, [part]) for name, part in parts.items()}
    return MemorySource(path, "npz", arrays, ends)


def _open_imitation(path: Path, headers: dict[str, Header]) -> MemorySource:
    """Leave out the observation after the last action of each episode; `infos`, a pickle, is not loaded."""
    obs, frames = headers["obs"], headers["acts"].shape[0] if headers["acts"].shape else 0
    ends = check_ends(np.append(_read_member(path, "indices", headers), frames), frames)
    if obs.shape[:1] != (frames + len(ends),):
        raise DemoError(
            f"{path} has obs {obs.shape}, expected {frames + len(ends)} rows: one for each of {frames} "
            f"actions and one after each of {len(ends)} episodes"
        )
    starts = [0, *ends[:-1]]
    parts = [
        Part(path, "obs", (int(end - start) + 1, *obs.shape[1:]), obs.dtype, int(end - start), int(start) + k)
        for k, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    acts = make_part(path, "acts", headers["acts"], frames)
    arrays = {"obs": NpzArray("obs", parts), "acts": NpzArray("acts", [acts])}
    conventions = {"state": ("obs",), "action": ("acts",)}
    return MemorySource(path, "imitation npz", arrays, ends, conventions=conventions)


def _has_rows(header: Header, frames: int) -> bool:
    return header.shape[:1] == (frames,) and 0 not in header.shape and header.dtype.kind in "biuf"


def _read_member(path: Path, name: str, headers: dict[str, Header]) -> Numbers:
    header = headers[name]
    if not header.shape:
        raise DemoError(f"{name} in {path} is a single number, expected one for each episode")
    if header.shape[0] == 0:
        return np.zeros(0, np.int64)
    return NpzArray(name, [make_part(path, name, header, header.shape[0])]).read_checked()


def _set_angles(arrays: Sequence[SourceArray], settings: TablesConfig) -> None:
    """Mark the columns that `angles` names: a column, or all columns of an array."""
    unknown = set(settings.angles)
    for array in arrays:
        names = array.columns or tuple(f"{array.name}[{i}]" for i in range(array.width))
        angles = [i for i, name in enumerate(names) if {name, array.name} & set(settings.angles)]
        array.angles = tuple(angles)
        unknown -= {array.name, *names}
    if unknown:
        raise DemoError(f"{DATASET_FILE} lists {sorted(unknown)} in angles, which are no observations")
