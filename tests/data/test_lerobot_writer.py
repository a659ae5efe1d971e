"""Tests of the writer of LeRobot data sets: same numbers, and LeRobot's own layout."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.data.check import check_store
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot.writer import write_lerobot
from nsde_policy.data.source import MemoryArray, MemorySource
from nsde_policy.errors import DemoError
from tests.helpers.lerobot_sets import DATA, EPISODES, TOP, WRIST, check_frames, edit_info, write_v3


def write_copy(tmp_path: Path, *, without: str = "") -> tuple[Path, Path]:
    """Write what LeRobot recorded once more, without one of its features; return both folders."""
    original, copy = write_v3(tmp_path / "original"), tmp_path / "copy"
    features = json.loads((original / "meta/info.json").read_text())["features"]
    edit_info(original, features={name: each for name, each in features.items() if name != without})
    with open_source(original) as source:
        assert write_lerobot(source, copy) == 3
    return original, copy


def test_layout_is_the_one_of_lerobot(tmp_path: Path) -> None:
    original, copy = write_copy(tmp_path, without=TOP)
    left_out = {"next.reward", "next.done", "observation.keypoints", TOP}
    first, second = (json.loads((path / "meta/info.json").read_text()) for path in (original, copy))
    assert {key: value for key, value in second.items() if key != "features"} == {
        key: value for key, value in first.items() if key != "features"
    }
    assert set(second["features"]) == set(first["features"]) - left_out
    for name, feature in second["features"].items():
        assert (feature["dtype"], feature["shape"]) == (
            first["features"][name]["dtype"],
            first["features"][name]["shape"],
        )
    notes, recorded = second["features"][WRIST]["info"], first["features"][WRIST]["info"]
    assert {
        key: notes[key] for key in recorded if key in notes and key[6:] not in ("crf", "g", "preset")
    }.items() <= recorded.items()
    for file in (DATA, EPISODES, "meta/tasks.parquet"):
        schemas = [pq.read_schema(path / file) for path in (original, copy)]
        fields = [{field.name: field.type for field in schema} for schema in schemas]
        kept = {k: v for k, v in fields[0].items() if not any(name in k.split("/") for name in left_out)}
        assert fields[1] == kept, file
    tables = [pq.read_table(path / EPISODES).to_pylist() for path in (original, copy)]
    for before, after in zip(*tables, strict=True):
        for key, value in after.items():
            if not key.startswith(("stats/", "videos/")):
                assert value == before[key], key
        assert after[f"videos/{WRIST}/file_index"] == after["episode_index"]
        start, stop = (f"videos/{WRIST}/{key}_timestamp" for key in ("from", "to"))
        assert after[stop] - after[start] == pytest.approx(before[stop] - before[start])
    assert pq.read_metadata(copy / DATA).num_row_groups == 3
    pandas = [
        json.loads(pq.read_schema(path / "meta/tasks.parquet").metadata[b"pandas"])
        for path in (original, copy)
    ]
    assert pandas[1]["index_columns"] == pandas[0]["index_columns"]
    assert pandas[1]["columns"] == pandas[0]["columns"]


def test_statistics_are_those_of_lerobot(tmp_path: Path) -> None:
    original, copy = write_copy(tmp_path, without=TOP)
    recorded, written = (json.loads((path / "meta/stats.json").read_text()) for path in (original, copy))
    for name, statistics in written.items():
        assert set(statistics) == set(recorded[name])
        for key, values in statistics.items():
            assert np.shape(values) == np.shape(recorded[name][key])
            if key == "count" or (key in ("min", "max", "mean", "std") and name != WRIST):
                assert np.allclose(values, recorded[name][key], atol=1e-6), (name, key)
    assert np.allclose(written[WRIST]["mean"], recorded[WRIST]["mean"], atol=2e-2)
    state = load_demonstrations(copy).obs
    assert np.allclose(written["observation.state"]["q10"], np.quantile(state, 0.1, axis=0))
    frames = open_images(original, key=WRIST)[:] / 255
    assert np.allclose(np.ravel(written[WRIST]["std"]), frames.std(axis=(0, 1, 2)), atol=1e-2)
    assert np.allclose(np.ravel(written[WRIST]["q90"]), np.quantile(frames, 0.9, axis=(0, 1, 2)), atol=2e-2)


def test_tasks_and_frames_come_along(tmp_path: Path) -> None:
    original, copy = write_copy(tmp_path)
    assert open_source(copy).attributes == open_source(original).attributes
    tasks = [open_source(path).open_array("task_index").read(0, 22) for path in (original, copy)]
    assert np.array_equal(*tasks)
    assert check_store(copy) == []
    for name in (TOP, WRIST):
        check_frames(open_images(copy, key=name)[:])


def test_what_lerobot_needs_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {
        "state": MemoryArray("state", np.ones((4, 2), np.float32)),
        "action": MemoryArray("action", np.ones((4, 1), np.float32)),
        "img": MemoryArray("img", np.zeros((4, 15, 16, 3), np.uint8)),
    }
    source = MemorySource(tmp_path, "memory", arrays, [4])
    with pytest.raises(DemoError, match="does not record its frames per second; use --rate"):
        write_lerobot(source, tmp_path / "set")
    assert write_lerobot(source, tmp_path / "set", rate_hz=12.5) == 1
    assert "img is left out: videos need an even height and width" in caplog.text
    assert "observation.images.img" not in open_source(tmp_path / "set").find_arrays()
    assert load_demonstrations(tmp_path / "set").rate_hz == 12.5
