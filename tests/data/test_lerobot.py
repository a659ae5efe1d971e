"""Tests of LeRobot data sets: versions 2 and 3, cameras, names, and damage."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.formats import camera_frames
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot import LeRobotSource
from nsde_policy.data.source import read_columns
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import edit_bytes
from tests.helpers.lerobot_sets import (
    DATA,
    EPISODES,
    LENGTHS,
    RATE,
    TOP,
    VIDEO,
    WRIST,
    check_frames,
    edit_column,
    edit_info,
    expected_frames,
    expected_state,
    write_v2,
    write_v3,
)


@pytest.mark.parametrize("write", [write_v3, write_v2, lambda path: write_v2(path, "v2.0")])
def test_numbers_names_and_frames_are_what_was_recorded(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path / "set")
    demos = load_demonstrations(path)
    assert np.array_equal(demos.obs, expected_state())
    assert np.array_equal(demos.act, expected_state()[:, :2] / np.float32(7))
    assert demos.lengths.tolist() == list(LENGTHS)
    assert (demos.rate_hz, demos.obs_names, demos.act_names) == (RATE, ("x", "y", "dx", "dy"), ("x", "y"))
    frames = open_images(path, key=WRIST)
    assert frames.shape == (22, 48, 64, 3)
    check_frames(frames[:])
    assert check_store(path) == []


def test_all_features_are_arrays_and_tasks_have_names(tmp_path: Path) -> None:
    source = open_source(write_v3(tmp_path))
    arrays = ["action", "next.done", "next.reward", TOP, WRIST, "observation.keypoints", "observation.state"]
    assert source.find_arrays() == [*arrays, "task_index"]
    assert source.attributes == {"robot_type": "arm", "tasks": {"0": "push", "1": "pull"}}
    assert source.open_array("observation.keypoints").read(3, 4).tolist() == [[[3, 4], [5, 6], [7, 8]]]
    assert source.open_array("next.done").read(6, 9).ravel().tolist() == [False, True, False]
    assert source.open_array("task_index").read(7, 9).ravel().tolist() == [0, 1]
    assert np.array_equal(open_images(tmp_path, key=TOP)[5:15], expected_frames(24, 32)[5:15])


def test_frames_are_decoded_in_one_go_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, seeks = [], []
    open_video = camera_frames.open_video

    class Counting:
        def __init__(self, container: Any) -> None:
            self._container = container
            self.decode = container.decode

        def seek(self, *args: Any, **options: Any) -> None:
            seeks.append(args)
            self._container.seek(*args, **options)

    class Opened:
        def __init__(self, path: Path) -> None:
            opened.append(path.name)
            self._context = open_video(path)

        def __enter__(self) -> Any:
            container, stream = self._context.__enter__()
            return Counting(container), stream

        def __exit__(self, *error: Any) -> Any:
            return self._context.__exit__(*error)

    monkeypatch.setattr(camera_frames, "open_video", Opened)
    path = write_v2(tmp_path / "set")
    frames = open_images(path, key=WRIST)
    whole = np.concatenate([frames[start : start + 3] for start in range(0, 22, 3)])
    assert (opened, seeks) == ([f"episode_{k:06}.mp4" for k in range(3)], [])
    again = frames[4:20]
    assert np.array_equal(again, whole[4:20])
    assert len(opened) == 3
    monkeypatch.setattr(camera_frames, "CACHE_BYTES", 2 * 48 * 64 * 3)
    frames = open_images(path, key=WRIST)
    for frame in (20, 3, 16, 1, 0, 9):  # any order gives the same frames, with two of them in memory
        assert np.array_equal(frames[frame], whole[frame])
    assert seeks


def test_names_of_columns_may_be_nested_or_come_from_groot(tmp_path: Path) -> None:
    write_v3(tmp_path)

    def read_names(names: object, shape: int = 4) -> tuple[str, ...]:
        features = json.loads((tmp_path / "meta/info.json").read_text())["features"]
        edit_info(
            tmp_path,
            features={
                **features,
                "observation.state": {"dtype": "float32", "shape": [shape], "names": names},
            },
        )
        return open_source(tmp_path).open_array("observation.state").columns

    assert read_names([["a", "b"], ["c", "d"]]) == ("a", "b", "c", "d")
    assert read_names({"left": ["a", "b"], "right": ["c", "d"]}) == ("a", "b", "c", "d")
    assert read_names(["a", "b"]) == read_names(None) == ()
    parts = {"arm": {"start": 0, "end": 2}, "grip": {"start": 3, "end": 4}, "far": {"start": 3, "end": 9}}
    (tmp_path / "meta/modality.json").write_text(json.dumps({"state": parts, "video": {"x": {}}}))
    assert read_names(["a", "b", "c", "d"]) == ("arm[0]", "arm[1]", "c", "grip")


def test_without_a_usual_state_all_low_dimensional_observations_are_the_state(tmp_path: Path) -> None:
    write_v3(tmp_path)
    features = json.loads((tmp_path / "meta/info.json").read_text())["features"]
    edit_column(tmp_path / DATA, "observation.state", lambda rows: None)
    edit_info(tmp_path, features={k: v for k, v in features.items() if k != "observation.state"})
    assert load_demonstrations(tmp_path).obs.shape == (22, 6)


def test_missing_episodes_at_the_end_and_cameras_are_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_v2(tmp_path / "set")
    (path / "data/chunk-000/episode_000002.parquet").unlink()
    for file in path.glob("videos/*/*/*"):
        file.unlink()
    assert np.array_equal(load_demonstrations(path).obs, expected_state()[:13])
    assert open_source(path).find_arrays() == ["action", "observation.state", "task_index"]
    assert check_store(path) == []
    assert main(["data", "check", str(path)]) == 0
    episodes, camera = summarize(path).oddities[:2]
    assert f"{episodes}\n{camera}" in capsys.readouterr().out
    assert episodes.startswith("2 of 3 episodes are there, the rest is left out: no ")
    assert camera == f"the camera {WRIST} is left out: it has no videos"


def test_a_data_set_of_ten_gigabytes_opens_with_few_reads(tmp_path: Path) -> None:
    write_v3(tmp_path)
    os.truncate(tmp_path / VIDEO, 10 * 2**30)
    content = (tmp_path / DATA).read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    with (tmp_path / DATA).open("r+b") as file:  # a hole of ten gigabytes between columns and footer
        file.seek(10 * 2**30)
        file.write(content[-footer:])
    load_demonstrations(write_v3(tmp_path / "imports"))
    before = _count_read_bytes()
    tracemalloc.start()
    demos = load_demonstrations(tmp_path)
    summary = summarize(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(demos.obs, expected_state())
    assert summary.frames == 22
    assert peak < 2**23
    assert _count_read_bytes() - before < 2**23


def _count_read_bytes() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def test_a_data_set_on_the_hub_needs_a_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        DemoError, match=r"hf://nobody/nothing cannot be downloaded: .*pass the path of a local copy"
    ):
        load_demonstrations("hf://nobody/nothing")


def test_recordings_of_g1_are_those_of_the_zarr_store(shared_demos: Path) -> None:
    demos = load_demonstrations(shared_demos / "formats/lerobot_v21_g1")
    assert demos.fingerprint == load_demonstrations(shared_demos / "g1_real.zarr").take(8).fingerprint
    assert demos.obs_names[0] == "kLeftShoulderPitch"


def test_recordings_of_groot_have_names_and_a_camera(shared_demos: Path) -> None:
    path = shared_demos / "formats/lerobot_v2_groot"
    demos = load_demonstrations(path)
    assert (demos.obs.shape, len(demos), demos.rate_hz) == ((2096, 44), 5, 20)
    assert (demos.obs_names[7], demos.act_names[-1]) == ("left_hand[0]", "waist[2]")
    frames = open_images(path, key="observation.images.ego_view")
    assert frames[414:418].shape == (4, 256, 256, 3)
    assert (
        np.abs(np.diff(frames[414:418].astype(int), axis=0)).mean(axis=(1, 2, 3)).argmax() == 1
    )  # a new episode


class Damage(NamedTuple):
    """A kind of damage of a data set of version 3 or 2, and a part of the expected message."""

    name: str
    make: Callable[[Path], object]
    message: str
    write: Callable[[Path], Path] = write_v3


def in_column(name: str, change: Callable[[list[Any]], Any], file: str = DATA) -> Callable[[Path], object]:
    return lambda path: edit_column(path / file, name, change)


def with_value(row: int, value: object) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [*rows[:row], value, *rows[row + 1 :]]


def with_feature(name: str, **change: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        features = json.loads((path / "meta/info.json").read_text())["features"]
        edit_info(path, features={**features, name: {**features.get(name, {}), **change}})

    return make


def without_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path / DATA).slice(0, 20), path / DATA)


def drop_a_frame(path: Path) -> None:
    """Drop a frame as a slow camera does, with metadata that agree with the rows."""
    table = pq.read_table(path / DATA)
    pq.write_table(pa.concat_tables([table.slice(0, 3), table.slice(4)]), path / DATA)
    edit_column(path / EPISODES, "length", with_value(0, 7))


def promise_frames(path: Path) -> None:
    edit_column(path / EPISODES, "length", with_value(2, 10**12))


def replace_by_pipe(path: Path) -> None:
    (path / DATA).unlink()
    os.mkfifo(path / DATA)


V2_DATA, V2_VIDEO = "data/chunk-000/episode_000001.parquet", f"videos/chunk-000/{WRIST}/episode_000001.mp4"
SPAN = f"videos/{WRIST}"
DAMAGES = [
    Damage(
        "no footer",
        lambda p: edit_bytes(p / DATA, lambda b: b[:-300]),
        "damaged or unfinished parquet file: .*; restore it",
    ),
    Damage("empty file", lambda p: (p / DATA).write_bytes(b""), "damaged or unfinished parquet file"),
    Damage(
        "overwritten",
        lambda p: edit_bytes(p / DATA, lambda b: bytes(900) + b[900:]),
        "damaged or unfinished parquet file",
    ),
    Damage("no data", lambda p: (p / DATA).unlink(), "file-000.parquet is missing; restore it"),
    Damage("pipe", replace_by_pipe, "not a regular file"),
    Damage(
        "lost episode",
        lambda p: (p / V2_DATA).unlink(),
        "episode_000001.parquet is missing; restore",
        write_v2,
    ),
    Damage(
        "lost video",
        lambda p: (p / V2_VIDEO).unlink(),
        "the video .*000001.mp4 is missing; restore",
        write_v2,
    ),
    Damage(
        "cut video", lambda p: edit_bytes(p / VIDEO, lambda b: b[: len(b) // 2]), "file-000.mp4 is damaged"
    ),
    Damage("no video", lambda p: (p / VIDEO).write_bytes(b"no video"), "is damaged or not a video"),
    Damage("fewer rows", without_rows, "has 20 rows, but its episodes 0 to 2 have 22 frames in meta"),
    Damage(
        "longer episode", in_column("length", with_value(1, 6), EPISODES), "has 22 rows, .* have 23 frames"
    ),
    Damage("episode of no length", in_column("length", with_value(1, 0), EPISODES), "episode 1 has 0 frames"),
    Damage("huge length", promise_frames, "would take 16000000000208 bytes, the limit"),
    Damage(
        "null length",
        in_column("length", with_value(1, None), EPISODES),
        "length in .*parquet holds .* 1 of them missing, expected int64",
    ),
    Damage(
        "episodes out of order",
        in_column("episode_index", lambda n: n[::-1], EPISODES),
        "episode_index is 0 in row 0 ",
    ),
    Damage(
        "frame gap", drop_a_frame, r"frame_index is 4 in row 3 \(episode 0, step 3\), expected frames without"
    ),
    Damage("other episode", in_column("episode_index", with_value(9, 2)), "episode_index is 2 in row 9"),
    Damage(
        "late frame",
        in_column("timestamp", lambda t: [x + 3.0 * (i > 4) for i, x in enumerate(t)]),
        "timestamp is 3.5 in row 5",
    ),
    Damage(
        "shifted video",
        in_column(f"{SPAN}/to_timestamp", with_value(0, 0.5), EPISODES),
        "8 frames, but .* has 5.0: frames would be shifted",
    ),
    Damage(
        "short video",
        lambda p: [
            edit_column(p / EPISODES, f"{SPAN}/{k}_timestamp", lambda t: [x + 2 for x in t])
            for k in ("from", "to")
        ],
        "is too short: it has no frame at 2.200 s",
    ),
    Damage(
        "no video column",
        in_column(f"{SPAN}/file_index", lambda n: None, EPISODES),
        "has no column 'videos/.*/file_index'",
    ),
    Damage(
        "no fps", lambda p: edit_info(p, fps=None), "info.json is damaged: .*missing required field `fps`"
    ),
    Damage("fps of 0", lambda p: edit_info(p, fps=0), r"info.json is damaged: .*\$.fps"),
    Damage(
        "no JSON",
        lambda p: (p / "meta/info.json").write_text("{"),
        "info.json is damaged: Input data was truncated",
    ),
    Damage(
        "old version", lambda p: edit_info(p, codebase_version="v1.6"), "format 'v1.6', expected v2.0 to v3.0"
    ),
    Damage(
        "episodes miscounted",
        lambda p: edit_info(p, total_episodes=4),
        "lists 3 episodes, meta/info.json counts 4",
    ),
    Damage(
        "path above",
        lambda p: edit_info(p, data_path="../{chunk_index}.parquet"),
        "expected one inside the data set",
    ),
    Damage(
        "absolute path", lambda p: edit_info(p, data_path="/etc/passwd"), "expected one inside the data set"
    ),
    Damage(
        "format string",
        lambda p: edit_info(p, data_path="{chunk_index.__class__}"),
        "expected one inside the data set",
    ),
    Damage(
        "wide format",
        lambda p: edit_info(p, data_path="{chunk_index:0999999999d}"),
        "expected one inside the data set",
    ),
    Damage(
        "camera above",
        with_feature("../../x", dtype="video", shape=[4, 4, 3]),
        "expected one inside the data set",
        write_v2,
    ),
    Damage(
        "no column",
        in_column("action", lambda rows: None),
        "has no column 'action'; it has: observation.state",
    ),
    Damage("other width", with_feature("action", shape=[3]), r"with lengths \[2\], expected float32 \(3,\)"),
    Damage(
        "ragged lists",
        in_column("action", with_value(4, [1.0])),
        r"with lengths \[1, 2\], expected float32 \(2,\)",
    ),
    Damage("null row", in_column("action", with_value(4, None)), r"with lengths \[0, 2\], expected"),
    Damage(
        "null number",
        in_column("next.reward", with_value(4, None)),
        "next.reward in .* holds double, 1 of them missing",
    ),
    Damage(
        "text", in_column("next.reward", lambda rows: ["?"] * len(rows)), "holds string, .* expected float32"
    ),
    Damage(
        "schema drift",
        in_column("task_index", with_value(4, 0.5)),
        "task_index in .* float64 that do not fit, expected int64",
    ),
    Damage(
        "NaN",
        in_column("observation.state", with_value(9, [0, 0, np.nan, 0])),
        r"nan in observation.state\[2\] at frame 9",
    ),
    Damage(
        "no picture",
        in_column(TOP, with_value(4, {"bytes": b"?", "path": ""})),
        "not an undamaged JPEG or PNG",
    ),
    Damage(
        "picture not embedded",
        in_column(TOP, with_value(4, {"bytes": None, "path": "x"})),
        "not an undamaged JPEG or PNG",
    ),
    Damage(
        "other size of pictures",
        with_feature(TOP, shape=[20, 32, 3]),
        r"pictures of shape \(24, 32, 3\), expected \(20, 32, 3\)",
    ),
    Damage(
        "other size of videos",
        with_feature(WRIST, shape=[40, 64, 3]),
        r"frames of shape \(48, 64, 3\), expected \(40, 64, 3\)",
    ),
    Damage(
        "lines",
        lambda p: (p / "meta/episodes.jsonl").write_text('{"episode_index": 0'),
        "episodes.jsonl is damaged",
        write_v2,
    ),
    Damage(
        "modality",
        lambda p: (p / "meta/modality.json").write_text('{"state": 3}'),
        "modality.json is damaged",
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_is_refused(damage: Damage, tmp_path: Path) -> None:
    path = damage.write(tmp_path / "set")
    damage.make(path)
    with pytest.raises(DemoError, match=damage.message):
        _read_everything(path)


def _read_everything(path: Path) -> None:
    source = open_source(path)
    assert isinstance(source, LeRobotSource)
    ends = source.read_ends()
    for name in ("observation.state", *source.find_arrays()):
        array = source.open_array(name)
        if len(array.shape) == 4:
            array.check_parts(int(ends[-1]))
            array.read(0, int(ends[-1]))
        else:
            read_columns(array, ends)
