"""Folders with a csv or npz file for each episode, described by `dataset.toml`, and single npz files.

rate_hz = 50
observations = ["q0", "q1"]    # columns of csv files, arrays of npz files
actions = ["u0", "u1"]
angles = ["q1"]                # optional: observations that are angles in radians
episode = "trial"              # optional: column of numbers, a new number begins a new episode
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nsde_policy.bounds import Positive
from nsde_policy.config import BaseConfig
from nsde_policy.data.formats.file_arrays import (
    DATASET_FILE,
    get_dataset_format,
    keep_open,
    load_dataset_toml,
    open_npz,
    open_npz_member,
)
from nsde_policy.data.formats.parted_source import Group, PartedArray, list_files, open_parts
from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.roles import find_roles
from nsde_policy.data.source import MemoryArray, MemorySource, SourceArray
from nsde_policy.data.types import Numbers, check_ends
from nsde_policy.data.zarr_store.store import wrap_read_errors
from nsde_policy.errors import DemoError
from nsde_policy.files import get_max_unpacked, read_file

KINDS = (".csv", ".npz")
TIME_COLUMNS = ("t", "time", "timestamp", "stamp", "frame", "index", "episode")


@dataclass(frozen=True)
class TablesConfig(BaseConfig):
    """Settings in `dataset.toml` of a folder of csv or npz files."""

    rate_hz: Positive
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    angles: tuple[str, ...] = ()
    episode: str = ""
    format: str = ""


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
        if path.suffix == ".npz" and not path.is_dir():
            return _open_npz(path)
        folder, files = path if path.is_dir() else path.parent, list_files(path, KINDS)
        if not (folder / DATASET_FILE).exists():
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


def _read_csv(path: Path, wanted: Collection[str] = ()) -> dict[str, SourceArray]:
    """Read the wanted columns of a csv file; the others are empty."""
    with wrap_read_errors(f"{path} cannot be read"):
        lines = read_file(path, get_max_unpacked(), error=DemoError).decode("utf-8-sig").splitlines() or [""]
        sep = max(",;\t", key=lines[0].count)
        names = [name.strip(' "') for name in lines[0].split(sep)]
        if len(set(names)) < len(names) or not all(names) or not any(map(str.strip, lines[1:])):
            raise DemoError(f"{path} begins with {lines[0]!r:.80}, expected names of columns, and rows below")
        used = [column for column, name in enumerate(names) if name in wanted]
        values = np.loadtxt(lines[1:], comments=None, delimiter=sep, usecols=used, ndmin=2, quotechar='"')
    read = {names[column]: values[:, i] for i, column in enumerate(used)}
    return {n: MemoryArray(f"{n} in {path}", read.get(n, np.zeros(0)), [n]) for n in names}


def _open_tables(path: Path, files: Sequence[Path], settings: TablesConfig) -> MemorySource:
    """Open a file for each episode; the arrays of npz files are read on demand."""
    open_member = keep_open(open_npz_member)
    wanted = {*settings.observations, *settings.actions, settings.episode} - {""}
    groups = []
    for file in files:
        arrays = _read_csv(file, wanted) if file.suffix == ".csv" else open_npz(file, open_member)
        if missing := wanted - arrays.keys():
            raise DemoError(
                f"{file} has no {', '.join(sorted(missing))}, it holds: {', '.join(arrays) or 'nothing'}; "
                f"correct {DATASET_FILE} or the file"
            )
        ends = np.array([sum(arrays[name].shape[:1]) for name in settings.actions[:1]], np.int64)
        if settings.episode:
            changes = np.diff(_read_whole(arrays.pop(settings.episode)))
            ends = np.r_[np.flatnonzero(changes) + 1, ends]
        groups.append(Group(str(file), arrays, ends))
    if unknown := set(settings.angles) - set(settings.observations):
        raise DemoError(f"{DATASET_FILE} lists {sorted(unknown)} in angles, which are no observations")
    for name in settings.angles:
        groups[0].arrays[name].angles = tuple(range(groups[0].arrays[name].width))
    conventions = {"state": settings.observations, "action": settings.actions}
    kind, rate_hz = f"{files[0].suffix[1:]} files", settings.rate_hz
    return open_parts(
        path, groups, wanted.__contains__, format=kind, rate_hz=rate_hz, conventions=conventions
    )


def _open_npz(path: Path) -> MemorySource:
    """Open a file with `episode_ends`, or of `imitation`; its `infos`, a pickle, are not loaded."""
    arrays = open_npz(path, keep_open(open_npz_member))
    names = ("state", "action")
    if is_imitation := {"obs", "acts", "indices"} <= arrays.keys():
        names = ("obs", "acts")
        ends = np.array([*_read_whole(arrays["indices"]).tolist(), *arrays["acts"].shape[:1]])
    elif "episode_ends" in arrays:
        ends = _read_whole(arrays.pop("episode_ends"))
    else:
        raise DemoError(
            f"{path} holds {', '.join(arrays) or 'nothing'}, expected episode_ends, one past the last frame "
            f"of each episode, with state and action; or a folder of such files with a {DATASET_FILE}"
        )
    ends = check_ends(ends, int(sum(arrays[names[1]].shape[:1] if names[1] in arrays else ends[-1:])))
    if is_imitation:
        obs, after = _read_whole(arrays["obs"]), ends + np.arange(len(ends))
        if len(obs) != after[-1] + 1:
            expected = f"{after[-1] + 1}, one for each action and one after each episode"
            raise DemoError(f"{path} has {len(obs)} obs, expected {expected}")
        arrays = {"obs": MemoryArray("obs", np.delete(obs, after, axis=0)), "acts": arrays["acts"]}
    kind, conventions = "imitation npz" if is_imitation else "npz", {"state": names[:1], "action": names[1:]}
    groups = [Group(str(path), arrays, ends)]
    return open_parts(path, groups, names.__contains__, format=kind, conventions=conventions)


def _read_whole(array: SourceArray) -> Numbers:
    return PartedArray(array.name, [array], array.shape[:1] or [0]).read_checked()
