"""LeRobot data sets, versions 2.0 to 3.0: a folder, or hf://organisation/name on the Hugging Face Hub."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from itertools import groupby
from pathlib import Path

import numpy as np

from nsde_policy.bounds import MAX_RATE, MIN_RATE
from nsde_policy.errors import DemoError, import_optional, summarize_error
from nsde_policy.files import MAX_UNPACKED_VARIABLE, get_max_unpacked, read_json

from ...source import MAX_COLUMNS, MemorySource, SourceArray, parse_action_space
from ...types import Numbers, check_angles, is_same_rate
from ..base import Reader
from ..groups import PartedArray, decode_image
from ..registry import register_reader
from .meta import INFO, PROVENANCE, Feature, LeRobotMeta
from .parquet import EXTRA, Arrow, convert_column, open_parquet, read_table
from .videos import Clip, VideoPlayer

HUB = "hf:"
"""First part of a path that stands for a data set on the Hub."""
COUNTERS = ("episode_index", "frame_index", "timestamp")
"""Columns that number the frames; they and `index` are not arrays."""
BYTES_PER_ROW = 64
"""Memory to check the counters of a row."""


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

    If only a part of a data set is there, episodes without a data file and cameras without any video are left
    out with a note. All other damage is an error.
    """

    def __init__(self, path: Path) -> None:
        self._meta = LeRobotMeta(path)
        paths, info = self._meta.find_paths(), self._meta.info
        existing = {file for file in set(paths) if file.exists()}
        self._places = [place for place, file in enumerate(paths) if file in existing]
        if not self._places:
            raise DemoError(f"{paths[0]} is missing; restore it from the original")
        if missing := [file for file in paths if file not in existing]:
            count = f"{len(self._places)} of {len(paths)} episodes"
            self.notes += (f"{count} are there, the rest is left out: no {missing[0]}",)
        self._files = {file: list(places) for file, places in groupby(self._places, paths.__getitem__)}
        self._read_table, self._find_groups = lru_cache(1)(read_table), cache(self._check_rows)
        self._lengths = [self._meta.episodes[place]["length"] for place in self._places]
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
            np.cumsum(self._lengths, dtype=np.int64),
            rate_hz=info.fps,
            conventions=conventions,
            attributes={**recorded, "robot_type": info.robot_type, "tasks": self._meta.read_tasks()},
        )
        self.act_limits = parse_action_space(recorded.get("action_space"), path)
        if (rate_hz := self._measure_rate()) and not is_same_rate(rate_hz, info.fps):
            self.notes += (
                f"time stamps say {rate_hz:.3g} Hz, {INFO} says {info.fps:g} Hz, which is used: if the time "
                f"stamps are right, use --rate {rate_hz:.3g}",
            )

    def _measure_rate(self) -> float | None:
        """Return the mean rate of the time stamps in the first file, None without any."""
        file, places = next(iter(self._files.items()))
        mean = 0.0
        with suppress(DemoError):  # damage is reported when the file is read
            counters, _ = self._read_counters(file, ["timestamp"])
            if counters.num_columns:
                seconds = convert_column(counters["timestamp"], (), "float64", "timestamp")
                ends = np.cumsum([self._meta.episodes[place]["length"] for place in places])
                periods = np.delete(np.diff(seconds), ends[:-1] - 1)
                mean = float(periods.mean()) if len(periods) else 0.0
        return 1 / mean if 1 / MAX_RATE <= mean <= 1 / MIN_RATE else None

    def _has(self, name: str, feature: Feature) -> bool:
        """Return whether a feature is an array; a camera has at least one video."""
        if feature.dtype != "video" or not feature.is_camera:
            is_number = re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)", feature.dtype)
            return feature.is_camera or bool(is_number and name not in ("index", *COUNTERS))
        files = self._meta.find_paths(name)
        is_there = any(files[place].exists() for place in self._places)
        if not is_there:
            self.notes += (f"the camera {name} is left out: it has no videos",)
        return is_there

    def _open(self, name: str, feature: Feature) -> SourceArray:
        """Open a feature; the content of files is checked when it is read."""
        if feature.dtype == "video":
            all_spans = self._meta.find_spans(name)
            spans = [all_spans[place] for place in self._places]
            first = next(span.path for span in spans if span.path.exists())
            player = VideoPlayer(feature.row_shape, self._meta.info.fps, first)
            if player.camera_hz != player.rate_hz:
                rates = f"{player.camera_hz:g} frames per second, the data have {player.rate_hz:g}"
                note = f"{name} has {rates}: every row takes the newest frame"
                self.notes = tuple(dict.fromkeys([*self.notes, note]))  # an array may be opened again
            clips = [Clip(player, span, length) for span, length in zip(spans, self._lengths, strict=True)]
            return PartedArray(name, clips, self._lengths)
        parts = [_FeatureRows(self, file, name, feature) for file in self._files]
        array = PartedArray(name, parts, [part.shape[0] for part in parts])
        if not feature.is_camera and array.width <= MAX_COLUMNS:
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
        column = self._read_table(file, (name,), range(first, last + 1)).column(name)
        return column.slice(start - starts[first], stop - start)

    def _read_counters(self, file: Path, names: Sequence[str]) -> tuple[Arrow, list[int]]:
        """Read counters of a file, if it has them, and find the first rows of its row groups."""
        with open_parquet(file) as table:
            rows = table.metadata.num_rows
            groups = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            names = [name for name in names if name in table.schema_arrow.names]
        if rows != (frames := self.count_rows(file)):
            first, last = (self._meta.episodes[self._files[file][k]]["episode_index"] for k in (0, -1))
            raise DemoError(
                f"{file} has {rows} rows, but its episodes {first} to {last} have {frames} frames in meta; "
                "restore it from the original"
            )
        if rows > (limit := get_max_unpacked() // BYTES_PER_ROW):
            raise DemoError(
                f"{file} has {rows} rows, the limit is {limit}; set {MAX_UNPACKED_VARIABLE} to at least "
                f"{rows * BYTES_PER_ROW} if the file is what you expect"
            )
        return read_table(file, names), [0, *np.cumsum(groups)[:-1].tolist()]

    def _check_rows(self, file: Path) -> list[int]:
        """Return the first rows of a file's row groups; raise unless its rows number frames without gaps."""
        counters, starts = self._read_counters(file, COUNTERS)
        episodes = [self._meta.episodes[place] for place in self._files[file]]
        lengths, numbers = ([episode[key] for episode in episodes] for key in ("length", "episode_index"))
        steps = np.concatenate([np.arange(length) for length in lengths])
        owners = np.repeat(numbers, lengths)
        for name in counters.column_names:
            values = convert_column(counters[name], (), "float64", f"{name} in {file}")
            if name == "timestamp":  # of some recordings, the first frame is not at 0
                periods = np.diff(values, prepend=0)
                inner = periods[(steps > 0) & np.isfinite(periods)]
                usual = np.quantile(inner, 0.5) if len(inner) else 0.0
                is_even = (steps == 0) | (np.abs(periods - usual) < 0.5 * usual)
                wrong = ~(np.isfinite(values) & is_even)
            else:
                wrong = values != (owners if name == "episode_index" else steps)
            if wrong.any():
                row = int(np.argmax(wrong))
                raise DemoError(
                    f"{file}: {name} is {values[row]:g} in row {row} (episode {owners[row]}, step "
                    f"{steps[row]}), expected frames without gaps: rows are missing or out of order; restore "
                    "the file or drop the episode"
                )
        return starts


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
        pictures = []
        for row in (value.as_py() for value in column):
            content = row.get("bytes") if isinstance(row, dict) else None
            pictures.append(decode_image(content or b"", f"a picture of {self.name}"))
        if wrong := {picture.shape for picture in pictures} - {self.shape[1:]}:
            raise DemoError(f"{self.name} has pictures of shape {min(wrong)}, expected {self.shape[1:]}")
        return np.stack(pictures)
