"""Metadata of LeRobot data sets, versions 2.0 to 3.0: features, episodes, tasks, and where the files are."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nsde_policy.bounds import Count, Positive
from nsde_policy.data.parquet_files import open_parquet
from nsde_policy.errors import DemoError, describe_problem
from nsde_policy.files import open_regular

INFO = "meta/info.json"
PROVENANCE = "meta/nsde_policy.json"
"""Attributes of the demonstrations that a data set was converted from."""
NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
SPAN = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
"""What version 3 records for each camera and episode."""
MAX_FRAMES = 2**40
"""Most frames of an episode."""
MAX_META_BYTES = 2**28
"""Largest file of metadata that is read."""

Decoded = TypeVar("Decoded")
EpisodeRow = dict[str, Any]
"""Numbers that are recorded for an episode: episode_index, length, and in version 3 files and times."""


class Feature(msgspec.Struct):
    """An entry of `features`: an array with one row per frame."""

    dtype: str
    shape: list[Count]
    names: object = None
    info: dict[str, object] | None = None
    video_info: dict[str, object] | None = None

    @property
    def is_camera(self) -> bool:
        """Whether it holds colour images; depth is stored in another way."""
        notes = {**(self.video_info or {}), **(self.info or {})}
        is_depth = notes.get("is_depth_map") or notes.get("video.is_depth_map")
        return self.dtype in ("video", "image") and len(self.shape) == 3 and not is_depth

    @property
    def angles(self) -> list[int]:
        """Columns that are angles, which `write_lerobot` records."""
        angles = (self.info or {}).get("angles", [])
        if not isinstance(angles, list):
            raise DemoError(f"{INFO} has angles {angles!r:.40}, expected a list of columns")
        return angles

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row; images have their channels last, though some data sets declare them first."""
        if self.is_camera:
            is_first = self.shape[0] in (1, 3) and self.shape[2] not in (1, 3)
            return (*(self.shape[1:] if is_first else self.shape[:2]), 3)
        return tuple(self.shape)


class _Part(msgspec.Struct):
    """Columns of a part of a robot."""

    start: int
    end: int
    original_key: str | None = None


class _Modality(msgspec.Struct):
    """Names of columns in meta/modality.json, which GR00T adds."""

    state: dict[str, _Part] = {}
    action: dict[str, _Part] = {}


class _Task(msgspec.Struct):
    task_index: int
    task: str


class _Episode(msgspec.Struct):
    episode_index: int
    length: int


class LeRobotInfo(msgspec.Struct):
    """Content of meta/info.json."""

    codebase_version: str
    fps: Positive
    features: dict[str, Feature]
    data_path: str
    video_path: str | None = None
    chunks_size: Count = 1000
    total_episodes: int | None = None
    robot_type: str | None = None

    @property
    def is_v3(self) -> bool:
        """Whether files hold several episodes."""
        return self.codebase_version.startswith("v3.")

    def locate(self, episode: EpisodeRow, camera: str = "") -> str:
        """Return the path of an episode's data or video; raise `DemoError` if it leaves the folder."""
        template = (self.video_path or "") if camera else self.data_path
        prefix, index = f"videos/{camera}" if camera else "data", episode["episode_index"]
        fields = {
            "episode_index": index,
            "episode_chunk": index // self.chunks_size,
            "chunk_index": episode.get(f"{prefix}/chunk_index"),
            "file_index": episode.get(f"{prefix}/file_index"),
            "video_key": camera,
        }
        found = re.sub(
            r"\{(\w+)(?::0(\d)d)?\}", lambda m: f"{fields.get(m[1], '{}')}".zfill(int(m[2] or 0)), template
        )
        if re.search(r"[{}\0]|^/", found) or ".." in found.split("/"):
            raise DemoError(f"{INFO} has the path {template!r:.100}, expected one inside the data set")
        return found


def read_lerobot_info(path: Path) -> LeRobotInfo:
    """Read meta/info.json of a data set."""
    info = _decode_file(path / INFO, msgspec.json.Decoder(LeRobotInfo).decode)
    if not re.fullmatch(r"v[23]\.\d+", info.codebase_version):
        raise DemoError(
            f"{path} has LeRobot's format {info.codebase_version!r:.20}, expected v2.0 to v3.0; convert it "
            "with LeRobot's scripts"
        )
    return info


def read_episode_rows(path: Path, info: LeRobotInfo) -> list[EpisodeRow]:
    """Read what the metadata of a data set records of its episodes."""
    if info.is_v3:
        where, rows = path / "meta/episodes", _read_episode_tables(path, info)
    else:
        where = path / "meta/episodes.jsonl"
        rows = [msgspec.structs.asdict(line) for line in _decode_lines(where, _Episode)]
    if not rows or info.total_episodes not in (None, len(rows)):
        raise DemoError(
            f"{where} lists {len(rows)} episodes, {INFO} counts {info.total_episodes}: the recording was "
            "interrupted, or files are missing; restore them from the original"
        )
    for row, before in zip(rows, [{"episode_index": -1}, *rows], strict=False):
        if row["episode_index"] <= before["episode_index"]:
            raise DemoError(f"{where}: episode {row['episode_index']} follows {before['episode_index']}")
        if not 0 < row["length"] <= MAX_FRAMES:
            raise DemoError(f"{where}: episode {row['episode_index']} has a length of {row['length']} frames")
    return rows


def _read_episode_tables(path: Path, info: LeRobotInfo) -> list[EpisodeRow]:
    """Read the tables of version 3 without the statistics, which are most of their columns."""
    needed = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    cameras = [name for name, feature in info.features.items() if feature.is_camera]
    needed += [
        f"videos/{name}/{key}" for name in cameras if info.features[name].dtype == "video" for key in SPAN
    ]
    rows: list[EpisodeRow] = []
    for file in sorted(path.glob("meta/episodes/*/*.parquet")):
        with open_parquet(file) as table:
            if missing := set(needed) - set(table.schema_arrow.names):
                raise DemoError(f"{file} has no column {min(missing)!r}, which LeRobot writes")
            found = table.read(needed).select(needed).to_pylist()
        kinds = {name: float if name.endswith("timestamp") else int for name in needed}
        for row in found:
            if wrong := [name for name, kind in kinds.items() if not isinstance(row[name], kind)]:
                raise DemoError(f"{file}: {wrong[0]} is {row[wrong[0]]!r:.40}, expected a number")
        rows += found
    return rows


def read_tasks(path: Path, info: LeRobotInfo) -> dict[str, str]:
    """Return the names of tasks by the number in `task_index`."""
    file = path / ("meta/tasks.parquet" if info.is_v3 else "meta/tasks.jsonl")
    if not file.exists():
        return {}
    if not info.is_v3:
        return {str(line.task_index): line.task for line in _decode_lines(file, _Task)}
    with open_parquet(file) as table:
        rows = table.read().to_pylist()
    # names are the index of a pandas table: a column `task` or `__index_level_0__`
    return {str(row.pop("task_index", None)): str(next(iter(row.values()), "")) for row in rows}


def find_column_names(path: Path, name: str, feature: Feature) -> Sequence[str]:
    """Return the names of the columns of a feature, from meta/modality.json if it has some; may be empty."""
    width, file = math.prod(feature.shape), path / "meta/modality.json"
    names = _flatten_names(feature.names)
    names = names if len(names) == width else []
    modality = _decode_file(file, msgspec.json.Decoder(_Modality).decode) if file.exists() else _Modality()
    for usual, parts in (("observation.state", modality.state), ("action", modality.action)):
        for label, part in parts.items():
            if (part.original_key or usual) == name and 0 <= part.start < part.end <= width:
                names = names or [f"{name}[{column}]" for column in range(width)]
                count = part.end - part.start
                labels = [f"{label}[{column}]" for column in range(count)]
                names[part.start : part.end] = labels if count > 1 else [label]
    return names


def _flatten_names(names: object) -> list[str]:
    """Return names of columns, which are a list, a list of lists, or a table of lists or of places."""
    if isinstance(names, dict):
        if all(isinstance(place, int) for place in names.values()):
            return sorted(names, key=names.__getitem__)
        names = list(names.values())
    if isinstance(names, list):
        return [leaf for part in names for leaf in _flatten_names(part)]
    return [names] if isinstance(names, str) else []


def _decode_lines(path: Path, kind: type[Decoded]) -> list[Decoded]:
    return _decode_file(path, msgspec.json.Decoder(kind).decode_lines)


def _decode_file(path: Path, decode: Callable[[bytes], Decoded]) -> Decoded:
    """Read a file of known form; raise `DemoError` with the place where it differs."""
    try:
        with open_regular(path, MAX_META_BYTES, error=DemoError) as file:
            return decode(file.read())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DemoError(
            f"{path} is damaged: {describe_problem(error)}; restore it from the original"
        ) from error
