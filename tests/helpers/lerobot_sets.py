"""Small LeRobot data sets: one that LeRobot 0.6.1 wrote (version 3.0), and the same in version 2."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.video_files import write_video

GOLDEN = Path(__file__).parents[1] / "golden/data/lerobot_v3.zip"
LENGTHS, RATE = (8, 5, 9), 10
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-000/file-000.parquet"
WRIST, TOP = "observation.images.wrist", "observation.images.top"
VIDEO = f"videos/{WRIST}/chunk-000/file-000.mp4"


def expected_state() -> npt.NDArray[np.float32]:
    """Return the states of all frames, (22, 4)."""
    return np.array([[e, k, e * k, k / 3] for e, n in enumerate(LENGTHS) for k in range(n)], np.float32)


def expected_frames(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return the camera frames: a square moves to the right, the episode is the brightness of the rest."""
    frames = np.empty((sum(LENGTHS), height, width, 3), np.uint8)
    for frame, (episode, step, *_) in zip(frames, expected_state().astype(int), strict=True):
        frame[:] = 20 + 40 * episode
        frame[height // 3 : 2 * height // 3, 2 * step : 2 * step + 8] = (200, 120, 60)
    return frames


def check_frames(frames: npt.NDArray[np.uint8]) -> None:
    """Assert that each decoded frame is closest to the expected one, with a small error."""
    expected = expected_frames(*frames.shape[1:3]).astype(int)
    errors = np.abs(frames[:, None].astype(int) - expected).mean(axis=(2, 3, 4))
    assert errors.argmin(axis=1).tolist() == list(range(sum(LENGTHS)))
    assert errors.diagonal().max() < 5


def write_v3(path: Path) -> Path:
    """Extract the data set of LeRobot: numbers, a video and a camera with pictures in the table."""
    with zipfile.ZipFile(GOLDEN) as archive:
        archive.extractall(path)
    return path


def write_v2(path: Path, version: str = "v2.1") -> Path:
    """Write states, actions and the video in version 2: one file for each episode."""
    v3 = json.loads(zipfile.ZipFile(GOLDEN).read("meta/info.json"))
    info = {key: v3[key] for key in ("fps", "robot_type", "chunks_size", "total_episodes", "features")}
    for name in ("next.reward", "next.done", "observation.keypoints", TOP):
        del info["features"][name]
    info["codebase_version"] = version
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    (path / "meta").mkdir(parents=True)
    (path / "data/chunk-000").mkdir(parents=True)
    (path / "meta/info.json").write_text(json.dumps(info))
    (path / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "push"}\n')
    state, frames, lines, first = expected_state(), expected_frames(48, 64), [], 0
    for episode, length in enumerate(LENGTHS):
        part, steps = slice(first, first + length), np.arange(length)
        lines.append({"episode_index": episode, "tasks": ["push"], "length": length})
        table = pa.table({
            "observation.state": make_lists(state[part]),
            "action": make_lists(state[part, :2] / 7),
            "timestamp": pa.array(steps / RATE, pa.float32()),
            "frame_index": steps,
            "episode_index": np.full(length, episode),
            "index": first + steps,
            "task_index": np.zeros(length, np.int64),
        })  # fmt: skip
        pq.write_table(table, path / f"data/chunk-000/episode_{episode:06}.parquet")
        write_video(path / f"videos/chunk-000/{WRIST}/episode_{episode:06}.mp4", frames[part], rate=RATE)
        first += length
    (path / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path


def make_lists(values: npt.NDArray[np.float32]) -> pa.Array:
    """Return rows as lists of fixed length."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(np.float32).ravel()), values.shape[1])


def edit_info(path: Path, **change: Any) -> None:
    """Change entries of meta/info.json; None removes one."""
    file = path / "meta/info.json"
    info = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({key: value for key, value in info.items() if value is not None}))


def edit_column(file: Path, name: str, change: Callable[[list[Any]], Any]) -> None:
    """Replace a column of a parquet file; None removes it."""
    table = pq.read_table(file)
    place, values = table.column_names.index(name), change(table.column(name).to_pylist())
    table = table.remove_column(place)
    if values is not None:
        table = table.add_column(place, name, [values])
    pq.write_table(table, file)
