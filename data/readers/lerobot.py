"""LeRobot data sets, versions 2.0 to 3.0: a folder, or hf://organisation/name on the Hugging Face Hub."""

from collections.abc import Iterator
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nsde_policy.data.camera_frames import Clip, VideoArray
from nsde_policy.data.lerobot_meta import (
    INFO,
    NUMBERS,
    PROVENANCE,
    Feature,
    find_column_names,
    read_episode_rows,
    read_lerobot_info,
    read_tasks,
)
from nsde_policy.data.parquet_files import EXTRA, Arrow, ColumnReader, convert_column, open_parquet
from nsde_policy.data.parted_source import decode_image
from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.source import Source, SourceArray
from nsde_policy.data.types import Ints, Numbers, check_angles
from nsde_policy.data.zarr_store.store import parse_action_space
from nsde_policy.errors import DemoError, import_optional, summarize_error
from nsde_policy.files import get_max_unpacked, read_json

HUB = "hf:"
"""First part of a path that stands for a data set on the Hub."""
TIME, COUNTERS = "timestamp", ("episode_index", "frame_index", "index")
"""Columns that number the frames: they are checked, but are not arrays."""


@register_reader
class LeRobotReader(Reader):
    """Reader of the parquet files and videos that LeRobot records."""

    name = "lerobot"

    def probe(self, path: Path) -> bool:
        """Recognise folders with meta/info.json, and names on the Hub."""
        return path.parts[:1] == (HUB,) or (path / INFO).is_file()

    def open(self, path: Path) -> "LeRobotSource":
        """Open a data set; one on the Hub is downloaded with its videos, or updated."""
        return LeRobotSource(_download("/".join(path.parts[1:])) if path.parts[:1] == (HUB,) else path)


@cache
def _download(name: str) -> Path:
    """Return the local copy of a data set on the Hub, organisation/name or organisation/name@revision."""
    hub = import_optional("huggingface_hub", EXTRA)
    repository, _, revision = name.partition("@")
    try:
        return Path(hub.snapshot_download(repository, repo_type="dataset", revision=revision or None))
    except (OSError, ValueError) as error:  # errors of the Hub are such errors too
        raise DemoError(
            f"hf://{name} cannot be downloaded: {summarize_error(error)}",
            "check its name and the connection, or give the path of a copy",
        ) from error


class _DataFile(NamedTuple):
    """A parquet file with the frames of consecutive episodes."""

    path: Path
    episodes: list[int]
    """Places of its episodes in the list of all."""


class LeRobotSource(Source):
    """An open data set; parquet files and videos are read on demand.

    After an incomplete download, the last episodes without a data file and cameras without any video are left
    out with a note. All other damage is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._info = read_lerobot_info(path)
        self.format, self.rate_hz = f"LeRobot {self._info.codebase_version}", self._info.fps
        self._episodes = read_episode_rows(path, self._info)
        self._files = self._find_files()
        self._ends = np.cumsum([episode["length"] for episode in self._episodes], dtype=np.int64)
        self._file_ends = self._ends[[file.episodes[-1] for file in self._files]]
        self._columns = ColumnReader()
        self._checked: set[tuple[Path, bool]] = set()
        low = [name for name, feature in self._features.items() if not feature.is_camera]
        self.conventions = {
            "state": _find_role(low, "observation.state", "observation."),
            "action": _find_role(low, "action", "action."),
        }
        self.act_limits = parse_action_space(self)

    def _find_files(self) -> list[_DataFile]:
        """Find the data files; drop the episodes at the end that have none."""
        paths = [self.path / self._info.locate(episode) for episode in self._episodes]
        files = [
            _DataFile(path, list(places)) for path, places in groupby(range(len(paths)), paths.__getitem__)
        ]
        while files and not files[-1].path.exists():
            files.pop()
        kept = files[-1].episodes[-1] + 1 if files else 0
        if not kept:
            raise DemoError(
                f"{self.path} has no data files: {paths[0]} is missing; download or copy them too"
            )
        if kept < len(paths):
            self.notes += (
                f"{kept} of {len(paths)} episodes have data, others are left out: {paths[kept]} is missing",
            )
        del self._episodes[kept:]
        return files

    @cached_property
    def _features(self) -> dict[str, Feature]:
        """Features that are arrays; a camera has at least one video."""
        found = {}
        for name, feature in self._info.features.items():
            if feature.dtype == "video" and feature.is_camera:
                if any(clip.path.exists() for clip in self._find_clips(name)):
                    found[name] = feature
                else:
                    self.notes += (f"the camera {name} is left out: it has no videos",)
            elif feature.is_camera or (NUMBERS.fullmatch(feature.dtype) and name not in (TIME, *COUNTERS)):
                found[name] = feature
        return found

    def _find_clips(self, camera: str) -> list[Clip]:
        starts = (episode.get(f"videos/{camera}/from_timestamp", 0.0) for episode in self._episodes)
        return [
            Clip(self.path / self._info.locate(episode, camera), start, episode["length"])
            for episode, start in zip(self._episodes, starts, strict=True)
        ]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Robot, and names of the tasks by their number."""
        record = self.path / PROVENANCE
        recorded = read_json(record, error=DemoError) if record.exists() else {}
        return {**recorded, "robot_type": self._info.robot_type, "tasks": read_tasks(self.path, self._info)}

    def find_arrays(self) -> list[str]:
        """Return the names of all features that are numbers or colour images."""
        return sorted(self._features)

    def open_array(self, name: str) -> SourceArray:
        """Open a feature; files are checked when they are read."""
        feature = self._features.get(name)
        if feature is None:
            raise DemoError(self.describe_missing(name))
        if feature.dtype != "video":
            return _RowArray(self, name, feature)
        return VideoArray(
            name,
            self._find_clips(name),
            feature.row_shape,
            self._info.fps,
            lambda k: self._check_clip(name, k),
        )

    def read_ends(self) -> Ints:
        """Return one past the last frame of each episode."""
        return self._ends

    def find_missing_files(self, frames: int) -> Iterator[str]:
        """Describe missing data files of the first frames."""
        for file in self._files[: int(np.searchsorted(self._file_ends, frames)) + 1]:
            if not file.path.exists():
                yield f"{file.path} is missing"

    def read_rows(self, name: str, start: int, stop: int) -> Iterator[tuple[Arrow, str]]:
        """Read the frames `start` to `stop` of a column, in parts with their names for messages."""
        first = int(np.searchsorted(self._file_ends, start, side="right"))
        for file, end in zip(self._files[first:], self._file_ends[first:].tolist(), strict=True):
            begin = end - sum(self._episodes[place]["length"] for place in file.episodes)
            if begin >= stop:
                return
            self._check_rows(file)
            part = self._columns.read(file.path, name, max(start - begin, 0), min(stop, end) - begin)
            yield part, f"{name} in {file.path}"

    def _check_clip(self, camera: str, place: int) -> None:
        """Raise `DemoError` unless the rows of an episode belong to the frames of its video one by one."""
        episode = self._episodes[place]
        file = self._files[int(np.searchsorted(self._file_ends, self._ends[place]))]
        start, end = (episode.get(f"videos/{camera}/{key}_timestamp", 0.0) for key in ("from", "to"))
        if self._info.is_v3 and abs((end - start) * self._info.fps - episode["length"]) > 1:
            raise DemoError(
                f"episode {episode['episode_index']} of {self.path} has {episode['length']} frames, but "
                f"{camera} from {start:.3f} to {end:.3f} s: frames would be shifted; drop the episode"
            )
        self._check_rows(file, times=True)

    def _check_rows(self, file: _DataFile, *, times: bool = False) -> None:
        """Raise `DemoError` unless the rows of a file number its episodes and frames without gaps."""
        if (file.path, times) in self._checked:
            return
        lengths = [self._episodes[place]["length"] for place in file.episodes]
        numbers = [self._episodes[place]["episode_index"] for place in file.episodes]
        with open_parquet(file.path) as table:
            rows = table.metadata.num_rows
            if rows != sum(lengths) or rows * 8 > get_max_unpacked():
                raise DemoError(
                    f"{file.path} has {rows} rows, but its episodes {numbers[0]} to {numbers[-1]} have "
                    f"{sum(lengths)} frames in meta; restore it from the original"
                )
            names = [name for name in (TIME, *COUNTERS) if name in table.schema_arrow.names]
            found = table.read(names, use_threads=False)
            columns = {
                name: convert_column(found.column(name), (), np.dtype("f8" if name == TIME else "i8"), name)
                for name in names
            }
        starts, owners = np.repeat(np.cumsum(lengths) - lengths, lengths), np.repeat(numbers, lengths)
        steps = np.arange(rows) - starts
        for name, values in columns.items():
            if name == TIME:  # of some recordings, the first frame is not at 0
                wrong = times & (steps > 0) & (np.abs(np.diff(values, prepend=0) * self._info.fps - 1) > 0.5)
            else:
                first = values[starts] if name == "index" else 0
                wrong = values != (owners if name == "episode_index" else first + steps)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise DemoError(
                    f"{file.path}: {name} is {values[row]:g} in row {row} (episode {owners[row]}, step "
                    f"{steps[row]}), expected frames without gaps: rows are missing or out of order; "
                    "restore the file or drop the episode"
                )
        self._checked.add((file.path, times))


class _RowArray(SourceArray):
    """A feature in the parquet files: numbers, or encoded pictures."""

    def __init__(self, source: LeRobotSource, name: str, feature: Feature) -> None:
        self.name, self._source, self._is_camera = name, source, feature.is_camera
        self.shape = (int(source.read_ends()[-1]), *feature.row_shape)
        self.dtype = np.dtype(np.uint8 if feature.is_camera else feature.dtype)
        if not feature.is_camera:
            self.columns = tuple(find_column_names(source.path, name, feature))
            self.angles = check_angles(feature.angles, self.width, name)

    def read(self, start: int, stop: int) -> Numbers:
        """Read the frames `start` to `stop`."""
        parts = [np.empty((0, *self.shape[1:]), self.dtype)]
        for part, where in self._source.read_rows(self.name, start, stop):
            if self._is_camera:
                parts += [self._decode(row, where) for row in part.to_pylist()]
            else:
                parts.append(convert_column(part, self.shape[1:], self.dtype, where))
        return np.concatenate(parts)

    def _decode(self, row: object, where: str) -> Numbers:
        """Decode a picture, {"bytes": …, "path": …}, to (1, height, width, 3)."""
        content = row.get("bytes") if isinstance(row, dict) else None
        picture = decode_image(content or b"", f"a picture of {where}")
        if picture.shape != self.shape[1:]:
            raise DemoError(f"{where} has pictures of shape {picture.shape}, expected {self.shape[1:]}")
        return picture[None]

    def find_faults(self, frames: int) -> Iterator[str]:
        """Describe missing files of the first frames."""
        return self._source.find_missing_files(frames)


def _find_role(names: list[str], usual: str, prefix: str) -> tuple[str, ...]:
    """Return the array with the usual name, or else all whose names begin with a prefix."""
    parts = tuple(name for name in names if name.startswith(prefix))
    return parts if parts and usual not in names else (usual,)
