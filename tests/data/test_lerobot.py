"""Tests of LeRobot data sets: versions 2 and 3, cameras and names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot import videos
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
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
from tests.helpers.video_files import write_video


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
    opened, open_video = [], videos.open_video

    def count(path: Path) -> Any:
        opened.append(path.name)
        return open_video(path)

    monkeypatch.setattr(videos, "open_video", count)
    path = write_v2(tmp_path / "set")
    frames = open_images(path, key=WRIST)
    whole = np.concatenate([frames[start : start + 3] for start in range(0, 22, 3)])
    assert opened == [f"episode_{k:06}.mp4" for k in range(3)]
    again = frames[4:20]
    assert np.array_equal(again, whole[4:20])
    assert len(opened) == 3
    monkeypatch.setattr(videos, "CACHE_BYTES", 2 * 48 * 64 * 3)
    frames = open_images(path, key=WRIST)
    for frame in (20, 3, 16, 1, 0, 9):  # any order gives the same frames, with two of them in memory
        assert np.array_equal(frames[frame], whole[frame])


def test_names_of_columns_may_be_nested(tmp_path: Path) -> None:
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
    assert read_names(["a", "b"]) == read_names(None) == read_names([{"a": 1}]) == ()
    assert read_names(400_000 * [[]] + [["a", "b", "c", "d"]]) == ()  # which would take much memory


def test_without_a_usual_state_all_low_dimensional_observations_are_the_state(tmp_path: Path) -> None:
    write_v3(tmp_path)
    features = json.loads((tmp_path / "meta/info.json").read_text())["features"]
    edit_column(tmp_path / DATA, "observation.state", lambda rows: None)
    edit_info(tmp_path, features={k: v for k, v in features.items() if k != "observation.state"})
    assert load_demonstrations(tmp_path).obs.shape == (22, 6)


def test_a_camera_without_videos_is_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_v2(tmp_path / "set")
    for file in path.glob("videos/*/*/*"):
        file.unlink()
    assert open_source(path).find_arrays() == ["action", "observation.state", "task_index"]
    assert main(["data", "check", str(path)]) == 0
    assert f"\nthe camera {WRIST} is left out: it has no videos" in capsys.readouterr().out


@pytest.mark.parametrize("write", [write_v3, write_v2])
def test_a_part_of_a_data_set_has_the_episodes_whose_files_are_there(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path / "set")
    first = path / "data/chunk-000/episode_000000.parquet"
    if write is write_v3:  # the last episode in a second file
        table, first = pq.read_table(path / DATA), path / DATA
        pq.write_table(table.slice(13), path / "data/chunk-000/file-001.parquet")
        edit_column(path / EPISODES, "data/file_index", lambda rows: [0, 0, 1])
    first.unlink()
    start = 13 if write is write_v3 else 8
    assert np.array_equal(load_demonstrations(path).obs, expected_state()[start:])
    assert np.abs(open_images(path, key=WRIST)[:].astype(int) - expected_frames(48, 64)[start:]).mean() < 5
    note = f"{1 if write is write_v3 else 2} of 3 episodes are there, the rest is left out: no {first}"
    assert summarize(path).oddities[0] == note
    assert check_store(path) == []


def test_without_some_videos_the_state_can_be_used(tmp_path: Path) -> None:
    path = write_v2(tmp_path / "set")
    (path / f"videos/chunk-000/{WRIST}/episode_000001.mp4").unlink()
    assert np.array_equal(load_demonstrations(path).obs, expected_state())
    assert "episode_000001.mp4 is missing" in str([array.fault for array in summarize(path).arrays])
    with pytest.raises(DemoError, match=r"episode_000001.mp4 is missing; restore it"):
        open_images(path, key=WRIST)


@pytest.mark.parametrize("write", [write_v3, write_v2])
@pytest.mark.parametrize("more", [1, 22])
def test_a_longer_video_is_of_other_episodes(
    tmp_path: Path, write: Callable[[Path], Path], more: int
) -> None:
    path = write(tmp_path / "set")
    video, count = (VIDEO, 22) if write is write_v3 else (f"videos/chunk-000/{WRIST}/episode_000001.mp4", 5)
    frames = np.concatenate(2 * [expected_frames(48, 64)])[: count + more]
    write_video(path / video, frames, rate=RATE)
    problem = f"{video} has {count + more} frames, but its episodes have {count}: "
    assert [problem in line for line in check_store(path)] == [True]
    assert problem in str([array.fault for array in summarize(path).arrays])
    with pytest.raises(DemoError, match=f"has {count + more} frames"):
        open_images(path, key=WRIST)


@pytest.mark.parametrize("write", [write_v3, write_v2])
def test_time_stamps_of_another_rate_are_said(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path / "set")
    assert not any("Hz" in note for note in open_source(path).notes)
    for file in path.glob("data/*/*.parquet"):
        edit_column(file, "timestamp", lambda times: [3 + time * 10 / 9.27 for time in times])
    (note,) = open_source(path).notes
    assert note.startswith("time stamps say 9.27 Hz, meta/info.json says 10 Hz, which is used")
    assert note.endswith("use --rate 9.27")
    assert load_demonstrations(path).rate_hz == RATE
    for file in path.glob("data/*/*.parquet"):  # less than half the rate is not a gap in every frame
        edit_column(file, "timestamp", lambda times: [time * 3 for time in times])
    assert "use --rate 3.09" in str(summarize(path).oddities)


@pytest.mark.parametrize("write", [write_v3, write_v2])
@pytest.mark.parametrize("camera_hz", [4, 5, 20])
def test_a_camera_of_another_rate_gives_its_newest_frame(
    tmp_path: Path, write: Callable[[Path], Path], camera_hz: int
) -> None:
    path, videos, shown = write(tmp_path / "set"), list[list[int]](), list[int]()
    for first, length in zip((0, 8, 13), LENGTHS, strict=True):
        newest = [step * camera_hz // RATE for step in range(length)]
        count = newest[-1] + max(1, camera_hz // RATE)
        videos.append([first + min(frame * RATE // camera_hz, length - 1) for frame in range(count)])
        shown += [videos[-1][frame] for frame in newest]
    pictures = expected_frames(48, 64)
    if write is write_v3:
        write_video(path / VIDEO, [pictures[row] for rows in videos for row in rows], rate=camera_hz)
        times = (np.cumsum([0, *map(len, videos)]) / camera_hz).tolist()
        edit_column(path / EPISODES, f"videos/{WRIST}/from_timestamp", lambda rows: times[:-1])
    for k, rows in enumerate(videos if write is write_v2 else ()):
        write_video(path / f"videos/chunk-000/{WRIST}/episode_{k:06}.mp4", pictures[rows], rate=camera_hz)
    assert check_store(path) == []
    assert f"{WRIST} has {camera_hz} frames per second, the data have 10: " in str(summarize(path).oddities)
    images = open_images(path, key=WRIST)
    for decoded in (images[:], np.stack([images[k] for k in reversed(range(22))])[::-1]):
        errors = np.abs(decoded[:, None].astype(int) - pictures).mean(axis=(2, 3, 4))
        assert errors.argmin(axis=1).tolist() == shown


def test_what_follows_an_action_and_the_task_are_no_observations(tmp_path: Path) -> None:
    path, out = write_v3(tmp_path / "set"), tmp_path / "out.zarr"
    assert main(["data", "convert", str(path), str(out)]) == 0
    assert summarize(path).observations == ("observation.keypoints", "observation.state")
    assert summarize(out).observations == ("keypoints", "state")
    assert {"next_done", "next_reward"} < set(open_source(out).find_arrays())


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


def test_recordings_of_groot_have_a_camera(shared_demos: Path) -> None:
    path = shared_demos / "formats/lerobot_v2_groot"
    demos = load_demonstrations(path)
    assert (demos.obs.shape, len(demos), demos.rate_hz) == ((2096, 44), 5, 20)
    frames = open_images(path, key="observation.images.ego_view")
    assert frames[414:418].shape == (4, 256, 256, 3)
    assert (
        np.abs(np.diff(frames[414:418].astype(int), axis=0)).mean(axis=(1, 2, 3)).argmax() == 1
    )  # a new episode
