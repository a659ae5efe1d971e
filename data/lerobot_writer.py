"""Writer of LeRobot data sets, version 3.0, from demonstrations of any format.

The layout is the one that LeRobot 0.6 records: files of limited size with the data and videos of several
episodes, and metadata with statistics of each episode.
"""

import abc
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.data.images import LazyFrames
from nsde_policy.data.lerobot_meta import INFO, PROVENANCE
from nsde_policy.data.parquet_files import EXTRA, Arrow
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.registry import load_from
from nsde_policy.data.roles import is_colour, read_shapes
from nsde_policy.data.source import READ_BYTES, Progress, Source
from nsde_policy.data.types import Demonstrations, Ints, Numbers
from nsde_policy.errors import DemoError, NsdePolicyError, import_optional
from nsde_policy.files import PARTIAL

FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH, VIDEO_PATH = f"data/{FILE}.parquet", f"videos/{{video_key}}/{FILE}.mp4"
CHUNK_FILES, DATA_MB, VIDEO_MB = 1000, 100, 200
"""Most files of a folder, and the sizes at which a new file is begun."""
TASK_TABLE = {
    "index_columns": ["task"],
    "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        for name, kind, stored in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ],
}
"""What pandas, with which LeRobot reads the names of tasks, must know about their table."""
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
VIDEO_CODECS = {
    "libsvtav1": {"g": "2", "crf": "30", "preset": "12"},
    "libx264": {"g": "2", "crf": "23", "bf": "0"},
}
"""Options of the encoders, of which the first that is installed is used."""


def write_lerobot(
    source: Source,
    out: Path,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    cameras: Sequence[str] | None = None,
    rate_hz: float | None = None,
    task: str | None = None,
    progress: Progress = iter,
) -> int:
    """Write demonstrations as a LeRobot data set and compare its numbers; returns the number of episodes.

    Observations become `observation.state`, actions `action`, cameras videos `observation.images.NAME`; other
    arrays are left out. The folder is written under another name, and renamed when it is complete.

    Args:
        source: Demonstrations of any format.
        out: New folder.
        obs_keys: Arrays that make up an observation.
        act_key: Array that holds the actions.
        cameras: Arrays of colour images; None for all.
        rate_hz: Frames per second; None to use what the files say.
        task: What the robot does, in words; None to use what the files say.
        progress: Shows a bar over the episodes.

    Raises:
        DemoError: If the original is damaged, or lacks something that LeRobot needs.
    """
    demos = load_from(source, obs_keys=obs_keys, act_key=act_key, rate_hz=rate_hz)
    if demos.rate_hz is None:
        raise DemoError(f"{source.path} does not record its frames per second", "use --rate")
    if os.path.lexists(out):
        raise NsdePolicyError(f"{out} exists; move it away or choose another folder")
    if cameras is None:
        cameras = [name for name, shape in read_shapes(source).items() if is_colour(shape)]
    images = dict(_open_camera(source, name, len(demos.obs)) for name in cameras)
    tasks, task_index = _find_tasks(source, len(demos.obs), task)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(PARTIAL, f"{out.name}.", out.parent) as temporary:
        folder = Path(temporary) / out.name
        writer = _Writer(folder, demos, images, task_index)
        try:
            for episode in progress(range(len(demos))):
                writer.write_episode(episode, tasks)
        finally:
            writer.close()
        writer.write_metadata(dict(source.attributes), tasks)
        _check_written(folder, demos, list(images))
        folder.rename(out)
    return len(demos)


class _Files(abc.ABC):
    """Numbered files that episodes are written to, the next file when one is large enough."""

    def __init__(self, folder: Path, template: str, limit_mb: int) -> None:
        self._folder, self._template, self._limit = folder, template, limit_mb * 2**20
        self._number, self._path = -1, folder
        self.frames, self.size = 0, 0
        """Frames and bytes in the file that is open."""

    def begin_episode(self, frames: int) -> dict[str, int]:
        """Return the numbers of folder and file for an episode; open the next file if it is time."""
        if not self.frames or self.size * (1 + frames / self.frames) >= self._limit:
            self.close()
            self._number, self.frames = self._number + 1, 0
        chunk, file = divmod(self._number, CHUNK_FILES)
        if not self.frames:
            self._path = self._folder / self._template.format(chunk_index=chunk, file_index=file)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            self.size = 0
        self.frames += frames
        return {"chunk_index": chunk, "file_index": file}

    @abc.abstractmethod
    def _open(self) -> None:
        """Open the file `_path`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish the file that is open."""


class _DataFiles(_Files):
    """Parquet files with one row group per episode."""

    def __init__(self, folder: Path, schema: Arrow) -> None:
        super().__init__(folder, DATA_PATH, DATA_MB)
        self._schema = schema
        self._file: Arrow = None

    def _open(self) -> None:
        parquet = import_optional("pyarrow.parquet", EXTRA)
        self._file = parquet.ParquetWriter(self._path, self._schema, compression="snappy")

    def write(self, table: Arrow) -> None:
        """Write the rows of an episode."""
        self._file.write_table(table)
        self.size = self._path.stat().st_size

    def close(self) -> None:
        """Write the footer of the file."""
        if self._file is not None:
            self._file.close()


class _VideoFiles(_Files):
    """Video files of one camera."""

    def __init__(self, folder: Path, name: str, images: LazyFrames, rate_hz: float) -> None:
        super().__init__(folder, VIDEO_PATH.replace("{video_key}", name), VIDEO_MB)
        self._images, self._rate = images, Fraction(rate_hz).limit_denominator(1001)
        self.histograms: list[Ints] = []
        """How often each brightness occurs in each channel, (3, 256) per episode."""
        self._av = import_optional("av", EXTRA)
        self._encoder = next(name for name in VIDEO_CODECS if name in self._av.codecs_available)
        self._container: Any = None
        self._stream: Any = None

    def _open(self) -> None:
        os.environ.setdefault("SVT_LOG", "1")  # errors only
        self._container = self._av.open(str(self._path), "w", options={"movflags": "faststart"})
        self._stream = self._container.add_stream(
            self._encoder, self._rate, options=VIDEO_CODECS[self._encoder]
        )
        self._stream.height, self._stream.width = self._images.shape[1:3]
        self._stream.pix_fmt = "yuv420p"
        self._written = 0

    def write(self, start: int, stop: int) -> None:
        """Write the frames of an episode."""
        histogram = np.zeros((3, 256), np.int64)
        rows = max(1, READ_BYTES // math.prod(self._images.shape[1:]))
        for first in range(start, stop, rows):
            for picture in self._images[first : min(first + rows, stop)]:
                frame = self._av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = self._written, 1 / self._rate
                packets = self._stream.encode(frame)
                self._container.mux(packets)
                self.size += sum(packet.size for packet in packets)
                self._written += 1
                histogram += [
                    np.bincount(picture[..., channel].ravel(), minlength=256) for channel in range(3)
                ]
        self.histograms.append(histogram)

    def close(self) -> None:
        """Write the last frames and the index."""
        if self._container is not None:
            self._container.mux(self._stream.encode())
            self._container.close()
            self._container = None

    def describe(self) -> dict[str, Any]:
        """Return the entry of the camera in `features`."""
        height, width, channels = self._images.shape[1:]
        notes = {
            "height": height,
            "width": width,
            "codec": self._av.Codec(self._encoder, "w").canonical_name,
            "pix_fmt": "yuv420p",
            "fps": float(self._rate),
            "channels": channels,
            **VIDEO_CODECS[self._encoder],
        }
        info = {
            **{f"video.{key}": value for key, value in notes.items()},
            "has_audio": False,
            "is_depth_map": False,
        }
        names = ["height", "width", "channels"]
        return {"dtype": "video", "shape": [height, width, channels], "names": names, "info": info}


class _Writer:
    """Writes episodes, and then their metadata, into a new folder."""

    def __init__(
        self, folder: Path, demos: Demonstrations, images: Mapping[str, LazyFrames], task_index: Ints
    ) -> None:
        rate = demos.rate_hz or 0.0
        self._folder, self._demos, self._rate = folder, demos, int(rate) if rate == int(rate) else rate
        steps = np.arange(len(demos.obs)) - np.repeat(demos.starts, demos.lengths)
        self._columns: dict[str, Numbers] = {
            "observation.state": demos.obs,
            "action": demos.act,
            "timestamp": (steps / self._rate).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.repeat(np.arange(len(demos)), demos.lengths),
            "index": np.arange(len(demos.obs)),
            "task_index": task_index,
        }
        self._data = _DataFiles(folder, _make_table(self._columns, 0, 0).schema)
        self._videos = {
            name: _VideoFiles(folder, name, frames, self._rate) for name, frames in images.items()
        }
        self._rows: list[dict[str, Any]] = []

    def write_episode(self, episode: int, tasks: Sequence[str]) -> None:
        """Write data and videos of an episode."""
        start, stop = int(self._demos.starts[episode]), int(self._demos.episode_ends[episode])
        numbers = np.unique(self._columns["task_index"][start:stop])
        row: dict[str, Any] = {
            "episode_index": episode,
            "tasks": [tasks[k] for k in numbers],
            "length": stop - start,
        }
        row |= {f"data/{key}": number for key, number in self._data.begin_episode(stop - start).items()}
        row |= {"dataset_from_index": start, "dataset_to_index": stop}
        self._data.write(_make_table(self._columns, start, stop))
        for name, video in self._videos.items():
            place = video.begin_episode(stop - start)
            times = (video.frames - (stop - start)) / self._rate, video.frames / self._rate
            row |= {f"videos/{name}/{key}": number for key, number in place.items()}
            row |= {
                f"videos/{name}/{key}_timestamp": time
                for key, time in zip(("from", "to"), times, strict=True)
            }
            video.write(start, stop)
        statistics = self._measure(slice(start, stop), slice(episode, episode + 1))
        row |= {
            f"stats/{name}/{key}": each for name, part in statistics.items() for key, each in part.items()
        }
        self._rows.append({**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})

    def _measure(self, frames: slice, episodes: slice) -> dict[str, dict[str, Any]]:
        """Return the statistics of all features, of some episodes."""
        found = {name: _measure_numbers(values[frames]) for name, values in self._columns.items()}
        for name, video in self._videos.items():
            count = len(self._columns["index"][frames])
            found[name] = _measure_colours(np.sum(video.histograms[episodes], axis=0), count)
        return found

    def close(self) -> None:
        """Finish the files of data and videos."""
        for files in (self._data, *self._videos.values()):
            files.close()

    def write_metadata(self, attributes: dict[str, Any], tasks: Sequence[str]) -> None:
        """Write the files in meta/; attributes are kept for this package, which LeRobot does not read."""
        if limits := self._demos.act_limits:
            low, high = ([None if math.isinf(limit) else limit for limit in part] for part in limits)
            attributes["action_space"] = {"low": low, "high": high}
        arrow, parquet = import_optional("pyarrow", EXTRA), import_optional("pyarrow.parquet", EXTRA)
        file = self._folder / "meta/episodes" / f"{FILE.format(chunk_index=0, file_index=0)}.parquet"
        file.parent.mkdir(parents=True)
        parquet.write_table(arrow.Table.from_pylist(self._rows), file)
        table = arrow.table({"task_index": np.arange(len(tasks)), "task": tasks})
        table = table.replace_schema_metadata({"pandas": json.dumps(TASK_TABLE)})
        parquet.write_table(table, self._folder / "meta/tasks.parquet")
        texts = {
            "meta/stats.json": self._measure(slice(None), slice(None)),
            PROVENANCE: attributes,
            INFO: self._describe(attributes.get("robot_type"), len(tasks)),
        }
        for name, content in texts.items():
            (self._folder / name).write_text(json.dumps(content, indent=4))

    def _describe(self, robot: str | None, tasks: int) -> dict[str, Any]:
        """Return the content of meta/info.json."""
        demos = self._demos
        features: dict[str, dict[str, Any]] = {}
        for name, values in self._columns.items():
            features[name] = {
                "dtype": str(values.dtype),
                "shape": list(values.shape[1:]) or [1],
                "names": None,
            }
        for name, names, angles in (
            ("observation.state", demos.obs_names, demos.angles),
            ("action", demos.act_names, demos.act_angles),
        ):
            features[name] |= {"names": list(names) or None, "info": {"angles": list(angles)}}
        return {
            "codebase_version": "v3.0",
            "fps": self._rate,
            "features": features | {name: video.describe() for name, video in self._videos.items()},
            "total_episodes": len(demos),
            "total_frames": len(demos.obs),
            "total_tasks": tasks,
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "robot_type": robot,
            "splits": {"train": f"0:{len(demos)}"},
        }


def _make_table(columns: Mapping[str, Numbers], start: int, stop: int) -> Arrow:
    """Return rows as an arrow table: lists of fixed length, or numbers."""
    arrow = import_optional("pyarrow", EXTRA)
    arrays = {}
    for name, values in columns.items():
        array = arrow.array(values[start:stop].ravel())
        arrays[name] = (
            arrow.FixedSizeListArray.from_arrays(array, values.shape[1]) if values.ndim > 1 else array
        )
    return arrow.table(arrays)


def _measure_numbers(values: Numbers) -> dict[str, Any]:
    """Return LeRobot's statistics of columns."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    quantiles = dict(zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True))
    return {**{key: each.tolist() for key, each in (found | quantiles).items()}, "count": [len(rows)]}


def _measure_colours(histogram: Ints, frames: int) -> dict[str, Any]:
    """Return LeRobot's statistics of images, brightness from 0 to 1, each (3, 1, 1)."""
    levels, pixels = np.arange(256) / 255, histogram[0].sum()
    cumulated = histogram.cumsum(axis=1)
    mean = histogram @ levels / pixels
    found = {"mean": mean, "std": np.sqrt(np.maximum(histogram @ levels**2 / pixels - mean**2, 0))}
    for key, share in {"min": 0.0, "max": 1.0, **QUANTILES}.items():
        found[key] = levels[[np.searchsorted(row, max(1, share * pixels)) for row in cumulated]]
    return {**{key: each.reshape(3, 1, 1).tolist() for key, each in found.items()}, "count": [frames]}


def _find_tasks(source: Source, frames: int, task: str | None) -> tuple[list[str], Ints]:
    """Return the names of tasks, and the number of each frame's task."""
    recorded = source.attributes.get("tasks")
    if task is None and isinstance(recorded, dict) and "task_index" in source.find_arrays():
        numbers, places = np.unique(source.open_array("task_index").read_checked(frames), return_inverse=True)
        return [str(recorded.get(str(number), number)) for number in numbers], places.reshape(frames)
    name = task or source.attributes.get("task")
    return [name if isinstance(name, str) else "demonstrations"], np.zeros(frames, np.int64)


def _open_camera(source: Source, name: str, frames: int) -> tuple[str, LazyFrames]:
    """Open a camera, and name it as LeRobot does; raise `DemoError` if a video cannot hold its frames."""
    array = source.open_array(name)
    if not is_colour(array.shape) or any(size % 2 for size in array.shape[1:3]):
        raise DemoError(
            f"{name} has shape {array.shape}, but LeRobot's videos need colours, an even height and width",
            "leave it out",
        )
    array.check_parts(frames)
    usual = name if name.startswith("observation.") else "observation.images." + re.sub(r"\W+", "_", name)
    return usual, LazyFrames(array, frames)


def _check_written(folder: Path, demos: Demonstrations, cameras: Sequence[str]) -> None:
    """Raise `DemoError` unless a data set has the numbers, and its videos the last frame."""
    with open_source(folder) as source:
        for name in cameras:
            source.open_array(name).read(len(demos.obs) - 1, len(demos.obs))
        if load_from(source).fingerprint != demos.fingerprint:
            raise DemoError(f"{folder} does not hold the numbers of {demos.source}; convert them again")
