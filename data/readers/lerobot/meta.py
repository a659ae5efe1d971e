"""Metadata of LeRobot data sets, versions 2.0 to 3.0: features, episodes, tasks, and where the files are."""

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from nsde_policy.bounds import MAX_RATE, MIN_RATE, Count
from nsde_policy.errors import DemoError, wrap_read_errors
from nsde_policy.files import MAX_JSON_BYTES, read_file

from ...source import MAX_ARRAYS
from .parquet import convert_column, open_parquet, read_table
from .videos import VideoSpan

INFO = "meta/info.json"
PROVENANCE = "meta/nsde_policy.json"
"""Attributes of the demonstrations that a data set was converted from."""
MAX_LINES_BYTES, MAX_ROWS = 2**26, 2**20
"""Largest .jsonl file that is read, and most episodes or tasks: short lines take far more in memory."""
MAX_NAMES_BYTES = 2**20
"""Longest JSON text of a feature's names that is decoded; longer ones are no names of columns."""

Decoded = TypeVar("Decoded")
Names = list[str | list[str]] | dict[str, list[str]] | None
"""Names of a feature's columns: a list, a list of lists, or a table of lists."""


class _Notes(msgspec.Struct):
    """Remarks on a feature; `write_lerobot` adds the columns that are angles."""

    angles: list[int] = []
    is_depth_map: bool = False
    is_depth_video: bool = msgspec.field(default=False, name="video.is_depth_map")


class Feature(msgspec.Struct):
    """An entry of `features`: an array with one row per frame."""

    dtype: str
    shape: Annotated[list[Count], msgspec.Meta(max_length=8)]
    names: msgspec.Raw = msgspec.Raw(b"null")
    """`Names` as JSON, because it may be anything: videos name their axes, others the parts of a robot."""
    info: _Notes | None = None
    video_info: _Notes | None = None

    @property
    def is_camera(self) -> bool:
        """Whether it holds colour images; depth is stored in another way."""
        notes = [note for note in (self.info, self.video_info) if note]
        is_depth = any(note.is_depth_map or note.is_depth_video for note in notes)
        return self.dtype in ("video", "image") and len(self.shape) == 3 and not is_depth

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row; images have their channels last, though some data sets declare them first."""
        if self.is_camera:
            is_first = self.shape[0] in (1, 3) and self.shape[2] not in (1, 3)
            return (*(self.shape[1:] if is_first else self.shape[:2]), 3)
        return tuple(self.shape)


class _Line(msgspec.Struct):  # of the metadata of version 2
    task_index: int = 0
    task: str = ""
    episode_index: int = 0
    length: int = 0


class LeRobotInfo(msgspec.Struct):
    """Content of meta/info.json."""

    codebase_version: str
    fps: Annotated[float, msgspec.Meta(ge=MIN_RATE, le=MAX_RATE)]
    features: Annotated[dict[str, Feature], msgspec.Meta(max_length=MAX_ARRAYS)]
    data_path: str
    video_path: str | None = None
    chunks_size: Count = 1000
    total_episodes: int | None = None
    robot_type: str | None = None


class LeRobotMeta:
    """What the metadata of a data set say: its features, episodes, tasks, and where its files are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        (self.info,) = _decode_meta(path / INFO, LeRobotInfo)
        if not re.fullmatch(r"v[23]\.\d+", version := self.info.codebase_version):
            raise DemoError(f"{path} has LeRobot's format {version!r:.20}, expected v2.0 to v3.0; convert it")
        self._is_v3 = version.startswith("v3.")
        self.episodes = self._read_episodes()
        if not self.episodes or self.info.total_episodes not in (None, len(self.episodes)):
            raise DemoError(
                f"{path}/meta lists {len(self.episodes)} episodes, {INFO} counts {self.info.total_episodes}: "
                "the recording was interrupted, or files are missing; restore them from the original"
            )
        for row in self.episodes:
            if not 0 < row["length"] < 2**40:
                raise DemoError(f"{path}/meta: episode {row['episode_index']} has {row['length']} frames")

    def _read_episodes(self) -> list[dict[str, Any]]:
        """Read the lines of version 2, or of the tables of version 3 all but the many statistics."""
        if not self._is_v3:
            lines = _decode_meta(self._path / "meta/episodes.jsonl", _Line)
            return [{"episode_index": line.episode_index, "length": line.length} for line in lines]
        needed = dict.fromkeys(["episode_index", "length", "data/chunk_index", "data/file_index"], "int64")
        for name, feature in self.info.features.items():
            if feature.is_camera and feature.dtype == "video":
                needed |= {f"videos/{name}/{key}_index": "int64" for key in ("chunk", "file")}
                needed[f"videos/{name}/from_timestamp"] = "float64"
        rows: list[dict[str, Any]] = []
        for file in sorted(self._path.glob("meta/episodes/*/*.parquet")):
            table = read_table(file, list(needed))
            _check_count(len(rows) + table.num_rows, file)
            lists = [
                convert_column(table[key], (), needed[key], f"{key} in {file}").tolist() for key in needed
            ]
            rows += [dict(zip(needed, row, strict=True)) for row in zip(*lists, strict=True)]
        return rows

    def find_paths(self, camera: str = "") -> list[Path]:
        """Return the data file of each episode, or its video; raise `DemoError` if one leaves the folder."""
        template = (self.info.video_path or "") if camera else self.info.data_path
        prefix, paths = f"videos/{camera}" if camera else "data", []
        for episode in self.episodes:
            chunk = episode["episode_index"] // self.info.chunks_size
            fields = {"video_key": camera, "episode_index": episode["episode_index"], "episode_chunk": chunk}
            fields["chunk_index"] = episode.get(f"{prefix}/chunk_index", chunk)
            fields["file_index"] = episode.get(f"{prefix}/file_index", "{}")  # which only version 3 has
            path = template
            for field, width in re.findall(r"\{(\w+)(?::0(\d)d)?\}", template):
                value = str(fields.get(field, "{}")).zfill(int(width or 0))
                path = path.replace(f"{{{field}:0{width}d}}" if width else f"{{{field}}}", value)
            if re.search(r"[{}\0]|^/", path) or ".." in path.split("/"):
                raise DemoError(f"{INFO} has the path {template!r:.100}, expected one inside the data set")
            paths.append(self._path / path)
        return paths

    def find_spans(self, camera: str) -> list[VideoSpan]:
        """Return where each episode is in the videos of a camera."""
        paths, key = self.find_paths(camera), f"videos/{camera}/from_timestamp"  # which only version 3 has
        starts = [episode.get(key, 0.0) for episode in self.episodes]
        previous = [0.0] * len(paths)
        ends: dict[Path, float] = {}
        for place in np.argsort(starts, kind="stable").tolist():
            path, seconds = paths[place], self.episodes[place]["length"] / self.info.fps
            previous[place] = ends.get(path, 0.0)
            ends[path] = max(previous[place], starts[place] + seconds)
        return [
            VideoSpan(path, start, before, ends[path])
            for path, start, before in zip(paths, starts, previous, strict=True)
        ]

    def read_tasks(self) -> dict[str, str]:
        """Return the names of tasks by the number in `task_index`."""
        file = self._path / f"meta/tasks.{'parquet' if self._is_v3 else 'jsonl'}"
        if not file.exists():
            return {}
        if not self._is_v3:
            return {str(line.task_index): line.task for line in _decode_meta(file, _Line)}
        with open_parquet(file) as parquet:
            fields = parquet.schema_arrow
        # names are the index of a pandas table: a column `task` or `__index_level_0__`
        texts = [field.name for field in fields if "string" in str(field.type)][:1]
        table = read_table(file, ["task_index", *texts])
        _check_count(table.num_rows, file)
        names = table[texts[0]].to_pylist() if texts else [""] * table.num_rows
        numbers = convert_column(table["task_index"], (), "int64", f"task_index in {file}").tolist()
        return dict(zip(map(str, numbers), map(str, names), strict=True))

    def find_column_names(self, name: str) -> list[str]:
        """Return the names of a feature's columns; empty unless each column has one."""
        feature, names = self.info.features[name], list[str]()
        if len(feature.names) <= MAX_NAMES_BYTES:
            with suppress(ValueError):
                parts = msgspec.json.decode(feature.names, type=Names) or []
                for part in parts.values() if isinstance(parts, dict) else parts:
                    names += [part] if isinstance(part, str) else part
        return names if len(names) == math.prod(feature.shape) else []


def _check_count(rows: int, file: Path) -> None:
    """Raise `DemoError` if metadata list more episodes, or tasks, than any data set has."""
    if rows > MAX_ROWS:
        raise DemoError(f"{file} lists {rows} episodes or tasks, the limit is {MAX_ROWS}; split the data set")


def _decode_meta(path: Path, kind: type[Decoded]) -> list[Decoded]:
    """Read the values in a JSON file, one per line in .jsonl; raise `DemoError` with the place of damage."""
    decoder, advice = msgspec.json.Decoder(kind), "restore it from the original"
    has_lines = path.suffix == ".jsonl"
    content = read_file(path, MAX_LINES_BYTES if has_lines else MAX_JSON_BYTES, error=DemoError)
    with wrap_read_errors(f"{path} is damaged", advice):
        if not has_lines:
            return [decoder.decode(content)]
        _check_count(content.count(b"\n"), path)
        return decoder.decode_lines(content)
