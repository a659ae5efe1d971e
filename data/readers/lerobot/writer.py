"""Writer of LeRobot data sets, version 3.0, from demonstrations of any format."""

import json
import logging
import math
import os
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.errors import DemoError, import_optional
from nsde_policy.files import publish_complete

from ...images import LazyFrames
from ...roles import is_colour, read_shapes
from ...source import READ_BYTES, Progress, Source, get_short_name
from ...types import Demonstrations, Ints, Numbers
from .. import load_demonstrations
from ..registry import load_from
from .meta import INFO, PROVENANCE
from .parquet import EXTRA, Arrow

logger = logging.getLogger(__name__)

DataColumns = dict[str, Numbers]
CameraFrames = dict[str, LazyFrames]
CHUNK_FILES = 1000
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
ALWAYS_FIRST = [f"{key}/{place}_index" for key in ("data", "meta/episodes") for place in ("chunk", "file")]
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
PIXELS = 10_000  # of an episode, for its statistics
ENCODER, ENCODER_OPTIONS = "libsvtav1", {"g": "2", "crf": "30", "preset": "12"}  # as LeRobot


def write_lerobot(
    source: Source,
    out: Path,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    rate_hz: float | None = None,
    task_text: str = "",
    progress: Progress = iter,
) -> int:
    """Write demonstrations as a LeRobot data set and compare its numbers; returns the number of episodes.

    Observations become `observation.state`, actions `action`, cameras `observation.images.NAME` with a video
    for each episode; other arrays are left out. `task_text` replaces the recorded tasks. The folder appears
    under its name when it is complete.
    """
    demos = load_from(source, obs_keys=obs_keys, act_key=act_key, rate_hz=rate_hz)
    if demos.rate_hz is None:
        raise DemoError(f"{source.path} does not record its frames per second", "use --rate")
    rate = int(demos.rate_hz) if demos.rate_hz == int(demos.rate_hz) else demos.rate_hz
    tasks, task_index = _find_tasks(source, len(demos.obs), task_text)
    columns, cameras = _make_columns(demos, task_index), _open_cameras(source, len(demos.obs))
    with publish_complete(out) as folder:
        rows, statistics = _write_episodes(folder, demos, columns, cameras, progress)
        info = {
            "codebase_version": "v3.0",
            "fps": rate,
            "features": _describe_features(demos, columns, cameras),
            "total_episodes": len(demos),
            "total_frames": len(demos.obs),
            "total_tasks": len(tasks),
            "robot_type": source.attributes.get("robot_type"),
            "splits": {"train": f"0:{len(demos)}"},
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
        }
        _write_tables(folder, rows, tasks, task_index)
        for path, content in ((INFO, info), ("meta/stats.json", statistics), (PROVENANCE, source.attributes)):
            (folder / path).write_text(json.dumps(content, indent=4))
        if load_demonstrations(folder).fingerprint != demos.fingerprint:
            raise DemoError(f"{out} would not hold the numbers of {source.path}; convert them again")
    return len(demos)


def _write_episodes(
    folder: Path, demos: Demonstrations, columns: DataColumns, cameras: CameraFrames, progress: Progress
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Write data and videos; return what LeRobot records of each episode, and statistics of all."""
    rows: list[dict[str, Any]] = []
    rate, ends = demos.rate_hz or 1.0, demos.episode_ends.tolist()
    pixels: dict[str, list[Numbers]] = {name: [] for name in cameras}
    parquet, data = import_optional("pyarrow.parquet", EXTRA), folder / "data/chunk-000/file-000.parquet"
    data.parent.mkdir(parents=True)
    with parquet.ParquetWriter(data, _make_table(columns, 0, 0).schema) as file:
        for episode in progress(range(len(ends))):
            start, stop = int(demos.starts[episode]), ends[episode]
            file.write_table(_make_table(columns, start, stop))  # a row group for each episode
            row: dict[str, Any] = {"episode_index": episode, "length": stop - start}
            row |= {"dataset_from_index": start, "dataset_to_index": stop}
            row |= dict.fromkeys(ALWAYS_FIRST, 0)
            statistics = {name: _measure(columns[name][start:stop], stop - start) for name in columns}
            for name, frames in cameras.items():
                place = {"chunk_index": episode // CHUNK_FILES, "file_index": episode % CHUNK_FILES}
                times = {"from_timestamp": 0.0, "to_timestamp": (stop - start) / rate}
                row |= {f"videos/{name}/{key}": value for key, value in {**place, **times}.items()}
                video = folder / VIDEO_PATH.format(video_key=name, **place)
                pixels[name].append(_write_video(video, frames, start, stop, rate))
                statistics[name] = _measure(pixels[name][-1], stop - start, (3, 1, 1))
            row |= {f"stats/{name}/{key}": part[key] for name, part in statistics.items() for key in part}
            rows.append(row)
    statistics = {name: _measure(values, len(values)) for name, values in columns.items()}
    for name, parts in pixels.items():
        statistics[name] = _measure(np.concatenate(parts), ends[-1], (3, 1, 1))
    return rows, statistics


def _write_tables(folder: Path, rows: Sequence[dict[str, Any]], tasks: list[str], task_index: Ints) -> None:
    """Write what is recorded of each episode, and the names of tasks as pandas would."""
    arrow, parquet = import_optional("pyarrow", EXTRA), import_optional("pyarrow.parquet", EXTRA)
    episodes = folder / "meta/episodes/chunk-000/file-000.parquet"
    episodes.parent.mkdir(parents=True)
    for row in rows:
        numbers = np.unique(task_index[row["dataset_from_index"] : row["dataset_to_index"]])
        row["tasks"] = [tasks[number] for number in numbers]
    parquet.write_table(arrow.Table.from_pylist(rows), episodes)
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        for name, kind, stored in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    names = arrow.table({"task_index": np.arange(len(tasks)), "task": tasks})
    names = names.replace_schema_metadata({"pandas": json.dumps(pandas)})
    parquet.write_table(names, folder / "meta/tasks.parquet")


def _make_columns(demos: Demonstrations, task_index: Ints) -> DataColumns:
    """Return the columns of the data, one row per frame."""
    steps = np.arange(len(demos.obs)) - np.repeat(demos.starts, demos.lengths)
    return {
        "observation.state": demos.obs,
        "action": demos.act,
        "timestamp": (steps / (demos.rate_hz or 1)).astype(np.float32),
        "frame_index": steps,
        "episode_index": np.repeat(np.arange(len(demos)), demos.lengths),
        "index": np.arange(len(demos.obs)),
        "task_index": task_index,
    }


def _find_tasks(source: Source, frames: int, task_text: str) -> tuple[list[str], Ints]:
    """Return the texts of tasks, `task_text` if it is not empty, and the number of each frame's task."""
    if task_text:
        return [task_text], np.zeros(frames, np.int64)
    recorded, task = (source.attributes.get(key) for key in ("tasks", "task"))
    if isinstance(recorded, dict) and "task_index" in source.find_arrays():
        numbers, places = np.unique(source.open_array("task_index").read_checked(frames), return_inverse=True)
        return [str(recorded.get(str(number), number)) for number in numbers], places.reshape(frames)
    return [task if isinstance(task, str) else "demonstrations"], np.zeros(frames, np.int64)


def _open_cameras(source: Source, frames: int) -> CameraFrames:
    """Open the cameras whose frames a video can hold, under names as LeRobot gives them."""
    cameras = {}
    for name, shape in read_shapes(source).items():
        usual = (
            name
            if name.startswith("observation.")
            else "observation.images." + re.sub(r"\W+", "_", get_short_name(name))
        )
        if is_colour(shape) and not any(size % 2 for size in shape[1:3]):
            array = source.open_array(name)
            array.check_parts(frames)
            cameras[usual] = LazyFrames(array, frames)
        elif is_colour(shape):
            logger.warning("%s is left out: videos need an even height and width, it has %s", name, shape)
    return cameras


def _make_table(columns: DataColumns, start: int, stop: int) -> Arrow:
    """Return rows as an arrow table: lists of fixed length, or numbers."""
    arrow = import_optional("pyarrow", EXTRA)
    arrays = {name: arrow.array(values[start:stop].ravel()) for name, values in columns.items()}
    for name in ("observation.state", "action"):
        arrays[name] = arrow.FixedSizeListArray.from_arrays(arrays[name], columns[name].shape[1])
    return arrow.table(arrays)


def _write_video(path: Path, frames: LazyFrames, start: int, stop: int, rate_hz: float) -> Numbers:
    """Write frames to a video; return random pixels of them, brightness from 0 to 1, (pixels, 3)."""
    os.environ.setdefault("SVT_LOG", "1")  # errors only
    path.parent.mkdir(parents=True, exist_ok=True)
    av, rng, pixels = import_optional("av", EXTRA), np.random.default_rng(start), []
    step = max(1, READ_BYTES // math.prod(frames.shape[1:]))
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        rate = Fraction(rate_hz).limit_denominator(1001)
        serial = {"svtav1-params": "lp=1"}  # many threads of SVT-AV1 have waited for each other for ever
        stream = container.add_stream(ENCODER, rate, options={**ENCODER_OPTIONS, **serial})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for first in range(start, stop, step):
            for number, picture in enumerate(frames[first : min(first + step, stop)], first - start):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = number, 1 / rate
                container.mux(stream.encode(frame))
                pixels.append(rng.choice(picture.reshape(-1, 3), 1 + PIXELS // (stop - start)))
        container.mux(stream.encode())
    return np.concatenate(pixels).astype(np.float32) / 255


def _describe_features(
    demos: Demonstrations, columns: DataColumns, cameras: CameraFrames
) -> dict[str, dict[str, Any]]:
    """Return what meta/info.json says about arrays and cameras."""
    features: dict[str, dict[str, Any]] = {
        name: {"dtype": str(values.dtype), "shape": values.shape[1:] or [1], "names": None}
        for name, values in columns.items()
    }
    features["observation.state"] |= {"names": demos.obs_names or None, "info": {"angles": demos.angles}}
    features["action"] |= {"names": demos.act_names or None, "info": {"angles": demos.act_angles}}
    for name, frames in cameras.items():
        sizes = dict(zip(("height", "width", "channels"), frames.shape[1:], strict=True))
        notes = {**sizes, "codec": "av1", "pix_fmt": "yuv420p", "fps": demos.rate_hz, **ENCODER_OPTIONS}
        info = {"has_audio": False, "is_depth_map": False, **{f"video.{key}": notes[key] for key in notes}}
        features[name] = {"dtype": "video", "shape": frames.shape[1:], "names": list(sizes), "info": info}
    return features


def _measure(values: Numbers, count: int, shape: tuple[int, ...] = (-1,)) -> dict[str, Any]:
    """Return LeRobot's statistics of columns, each of a shape."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    statistics = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    statistics |= zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True)
    return {**{key: each.reshape(shape).tolist() for key, each in statistics.items()}, "count": [count]}
