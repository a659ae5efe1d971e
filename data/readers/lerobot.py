"""LeRobot data sets, versions 2.0 to 3.0: a folder, or hf://organisation/name on the Hugging Face Hub."""

import re
from bisect import bisect_right
from functools import cache, lru_cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np

from nsde_policy.data.formats.camera_frames import Clip, VideoPlayer
from nsde_policy.data.formats.lerobot_meta import INFO, PROVENANCE, Feature, LeRobotMeta
from nsde_policy.data.formats.parquet_files import EXTRA, Arrow, convert_column, open_parquet, read_column
from nsde_policy.data.formats.parted_source import PartedArray, decode_image
from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.source import MemorySource, SourceArray
from nsde_policy.data.types import Numbers, check_angles
from nsde_policy.data.zarr_store.store import parse_action_space
from nsde_policy.errors import DemoError, import_optional, summarize_error
from nsde_policy.files import get_max_unpacked, read_json

HUB = "hf:"
"""First part of a path that stands for a data set on the Hub."""
COUNTERS = ("episode_index", "frame_index", "timestamp")
"""Columns that number the frames; they and `index` are not arrays."""


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
            "check its name and the connection, or pass the path of a local copy",
        ) from error


class LeRobotSource(MemorySource):
    """An open data set; parquet files and videos are read on demand.

    After an incomplete download, the last episodes without a data file and cameras without any video are left
    out with a note. All other damage is an error.
    """

    def __init__(self, path: Path) -> None:
        self._meta = LeRobotMeta(path)
        paths, info = self._meta.find_paths(), self._meta.info
        there = {file for file in set(paths) if file.exists()}
        kept = max((k for k, file in enumerate(paths, 1) if file in there), default=0)
        if lost := [file for file in paths[: kept or 1] if file not in there]:
            raise DemoError(f"{lost[0]} is missing; restore it from the original")
        if kept < len(paths):
            self.notes += (
                f"{kept} of {len(paths)} episodes are there, the rest is left out: no {paths[kept]}",
            )
            del self._meta.episodes[kept:]
        self._files = {file: list(places) for file, places in groupby(range(kept), paths.__getitem__)}
        self._read_column, self._find_groups = lru_cache(1)(read_column), cache(self._check_rows)
        features = {name: kind for name, kind in info.features.items() if self._has(name, kind)}
        low = [name for name, kind in features.items() if not kind.is_camera]
        conventions = {}
        for role, usual in (("state", "observation.state"), ("action", "action")):
            parts = tuple(name for name in low if name.startswith(f"{usual.partition('.')[0]}."))
            conventions[role] = parts if parts and usual not in low else (usual,)
        record = path / PROVENANCE
        recorded = read_json(record, error=DemoError) if record.exists() else {}
        super().__init__(
            path,
            f"LeRobot {info.codebase_version}",
            {name: partial(self._open, name, kind) for name, kind in features.items()},
            np.cumsum([episode["length"] for episode in self._meta.episodes], dtype=np.int64),
            rate_hz=info.fps,
            conventions=conventions,
            attributes={**recorded, "robot_type": info.robot_type, "tasks": self._meta.read_tasks()},
        )
        self.act_limits = parse_action_space(self)

    def _has(self, name: str, feature: Feature) -> bool:
        """Return whether a feature is an array; a camera has at least one video."""
        if feature.dtype != "video" or not feature.is_camera:
            is_number = re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)", feature.dtype)
            return feature.is_camera or bool(is_number and name not in ("index", *COUNTERS))
        is_there = any(file.exists() for file in self._meta.find_paths(name))
        if not is_there:
            self.notes += (f"the camera {name} is left out: it has no videos",)
        return is_there

    def _open(self, name: str, feature: Feature) -> SourceArray:
        """Open a feature; the content of files is checked when it is read."""
        if feature.dtype == "video":
            player, clips = VideoPlayer(feature.row_shape, self._meta.info.fps), self._meta.find_clips(name)
            lengths = [episode["length"] for episode in self._meta.episodes]
            videos = [Clip(player, *clip, rows) for clip, rows in zip(clips, lengths, strict=True)]
            return PartedArray(name, videos, lengths)
        parts = [_FeatureRows(self, file, name, feature) for file in self._files]
        array = PartedArray(name, parts, [part.shape[0] for part in parts])
        if not feature.is_camera:
            array.columns = tuple(self._meta.find_column_names(name))
            array.angles = check_angles(feature.info.angles if feature.info else (), array.width, name)
        return array

    def count_rows(self, file: Path) -> int:
        """Return the frames of a data file, as the metadata say."""
        return sum(self._meta.episodes[place]["length"] for place in self._files[file])

    def read_rows(self, file: Path, name: str, start: int, stop: int) -> Arrow:
        """Read rows of a column; the row groups read last stay in memory for the rows that follow."""
        starts = self._find_groups(file)
        first, last = (bisect_right(starts, row) - 1 for row in (start, stop - 1))
        column = self._read_column(file, name, range(first, last + 1))
        return column.slice(start - starts[first], stop - start)

    def _check_rows(self, file: Path) -> list[int]:
        """Return the first rows of a file's row groups; raise unless its rows number frames without gaps."""
        episodes = [self._meta.episodes[place] for place in self._files[file]]
        lengths, numbers = ([episode[key] for episode in episodes] for key in ("length", "episode_index"))
        with open_parquet(file) as table:
            rows = table.metadata.num_rows
            if rows != sum(lengths) or rows * 8 > get_max_unpacked():
                raise DemoError(
                    f"{file} has {rows} rows, but its episodes {numbers[0]} to {numbers[-1]} have "
                    f"{sum(lengths)} frames in meta; restore it from the original"
                )
            groups = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            names = [name for name in COUNTERS if name in table.schema_arrow.names]
            found = table.read(names, use_threads=False)
        steps = np.concatenate([np.arange(length) for length in lengths])
        owners = np.repeat(numbers, lengths)
        for name in names:
            values = convert_column(found[name], (), "float64", name)
            if name == "timestamp":  # of some recordings, the first frame is not at 0
                wrong = (steps > 0) & (np.abs(np.diff(values, prepend=0) * self._meta.info.fps - 1) > 0.5)
            else:
                wrong = values != (owners if name == "episode_index" else steps)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise DemoError(
                    f"{file}: {name} is {values[row]:g} in row {row} (episode {owners[row]}, step "
                    f"{steps[row]}), expected frames without gaps: rows are missing or out of order; restore "
                    "the file or drop the episode"
                )
        return [0, *np.cumsum(groups)[:-1].tolist()]


class _FeatureRows(SourceArray):
    """Rows of a feature in a parquet file: numbers, or encoded pictures, {"bytes": …, "path": …}."""

    def __init__(self, source: LeRobotSource, file: Path, column: str, feature: Feature) -> None:
        self.name, self._source, self._file, self._column = f"{column} in {file}", source, file, column
        self.shape, self._is_camera = (source.count_rows(file), *feature.row_shape), feature.is_camera
        self.dtype = np.dtype(np.uint8 if feature.is_camera else feature.dtype)

    def read(self, start: int, stop: int) -> Numbers:
        """Read the rows `start` to `stop`."""
        column = self._source.read_rows(self._file, self._column, start, stop)
        if not self._is_camera:
            return convert_column(column, self.shape[1:], self.dtype.name, self.name)
        found = [row.get("bytes") if isinstance(row, dict) else None for row in column.to_pylist()]
        pictures = [decode_image(content or b"", f"a picture of {self.name}") for content in found]
        if wrong := {picture.shape for picture in pictures} - {self.shape[1:]}:
            raise DemoError(f"{self.name} has pictures of shape {min(wrong)}, expected {self.shape[1:]}")
        return np.stack(pictures)
