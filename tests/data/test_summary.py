"""Tests for data/summary.py, data/check.py and nsde_policy/cli/data.py."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from nsde_policy.assets import find_demos
from nsde_policy.cli.main import main
from nsde_policy.data.angles import find_wrapped_columns
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import edit_bytes, write_store, zip_store
from tests.helpers.robot_arm import make_arm_demos


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "demos.zarr", attributes={"rate_hz": 10, "operator": "ada"})


def test_info_prints_text_and_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", str(store)]) == 0
    text = capsys.readouterr().out
    for part in (
        "3 episodes, 40 frames, 10 Hz, 4 s",
        "10 to 15 frames, median 15",
        "\ncan be cameras: --images img\n",
        "ada",
        "[4] jumps by 2π",
    ):
        assert part in text
    assert main(["data", "info", str(zip_store(store)), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["episodes"], info["frames"], info["rate_hz"]) == (3, 40, 10)
    assert info["episode_length"] == [10, 15, 15]
    assert info["format"] == "zarr format 2, zip"
    assert info["attributes"]["operator"] == "ada"
    arrays = {array["name"]: array for array in info["arrays"]}
    assert arrays["data/keypoint"]["shape"] == [40, 9, 2]
    assert len(arrays["data/state"]["minimum"]) == 5
    assert arrays["data/state"]["looks_like_angles"] == [4]
    assert (arrays["data/img"]["minimum"], arrays["data/img"]["dtype"]) == (None, "float32")


def test_info_says_what_training_would_take(tmp_path: Path) -> None:
    demos = make_arm_demos()
    arrays = dict.fromkeys(["data/keypoint", "data/img"])
    arrays |= {"data/state": demos.obs, "data/action": demos.act, "meta/episode_ends": demos.episode_ends}
    summary = summarize(write_store(tmp_path / "arm.zarr", arrays))
    assert (summary.observations, summary.actions) == (("state",), ("action",))
    assert summary.positions == (*range(7), -1)
    text = summary.to_text()
    for part in ("--obs-keys state\n", "--act-key action\n", "action 0-6 = observation 0-6", "train --rate"):
        assert part in text


def test_info_calls_columns_by_their_names(store: Path) -> None:
    assert "\n  [0]  " in summarize(store).to_text()
    zarr.open_group(store, mode="a").attrs["columns"] = {"state": ["x", "y", "block x", "block y", "angle"]}
    text = summarize(store).to_text()
    assert all(f"\n  {name}  " in text for name in ("x", "block y", "angle"))


def test_info_says_that_actions_are_changes() -> None:
    summary = summarize(find_demos("avoiding"))
    assert summary.changes == (0, 1)
    assert "\nactions that are changes per period: action 0-1 changes observation 0-1; " in summary.to_text()


def test_info_mentions_damaged_images_and_refuses_other_damage(store: Path) -> None:
    (store / "data/img/1.0.0.0").unlink()
    assert "chunk data/img/1.0.0.0 is missing" in summarize(store).to_text()
    (store / "data/keypoint/1.0.0").unlink()
    with pytest.raises(DemoError, match=r"data/keypoint/1.0.0 is missing"):
        summarize(store)


def test_only_columns_that_wrap_look_like_angles() -> None:
    turning = np.linspace(0, 20, 60)
    columns = [turning % (2 * np.pi), (turning + np.pi) % (2 * np.pi) - np.pi, turning, np.tile([0, 500], 30)]
    jump_between_episodes = np.repeat([0.1, 6.2], 30)
    values = np.stack([*columns, jump_between_episodes], axis=1).astype(np.float32)
    assert find_wrapped_columns(values, np.array([30, 60])) == [0, 1]


def test_check_lists_all_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_store(
        tmp_path / "demos.zarr",
        {
            "data/action": np.full((40, 2), np.inf),
            "data/extra": np.ones((40, 3)),
            "data/short": np.ones((9, 1)),
        },
        compressors={"id": "zstd", "level": 1},
    )
    (path / "data/state/1.0").unlink()
    (path / "data/state/2.0").unlink()
    (path / "data/extra/.zarray").write_text("{")
    edit_bytes(path / "data/img/3.0.0.0", lambda content: content[:30])

    assert main(["data", "check", str(path)]) == 2

    printed = capsys.readouterr()
    assert "has 9 problem" in printed.err
    for part in (
        "chunk data/state/1.0 is missing",
        "chunk data/state/2.0 is missing",
        "data/extra/.zarray is not valid JSON",
        "data/img: frames 30 to 40 cannot be decoded",
        "data/short 9",
        "data/action: 20 NaN or infinite numbers in frames 0 to 10",
    ):
        assert part in printed.out
