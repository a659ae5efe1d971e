"""Tests for data/zarr_store/summary.py, data/zarr_store/check.py and nsde_policy/cli/data.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.cli.data import DataCheck, DataInfo
from nsde_policy.data.zarr_store.check import check_store
from nsde_policy.data.zarr_store.summary import find_wrapped_columns, summarize
from nsde_policy.errors import DemoError, EpisodeError, NotAStoreError
from tests.helpers.demo_stores import edit_bytes, write_store, zip_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "demos.zarr", attributes={"rate_hz": 10, "operator": "ada"})


def test_info_prints_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataInfo(zip_store(store), json=True).run()
    info = json.loads(capsys.readouterr().out)
    assert (info["episodes"], info["frames"], info["rate_hz"]) == (3, 40, 10)
    assert info["episode_length"] == [10, 15, 15]
    assert (info["container"], info["zarr_format"]) == ("zip", 2)
    assert info["attributes"]["operator"] == "ada"
    arrays = {array["name"]: array for array in info["arrays"]}
    assert arrays["data/keypoint"]["shape"] == [40, 9, 2]
    assert len(arrays["data/state"]["minimum"]) == 5
    assert arrays["data/state"]["looks_like_angles"] == [4]


def test_info_prints_text(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataInfo(store).run()
    text = capsys.readouterr().out
    for part in ("3 episodes, 40 frames, 10 Hz, 4 s", "10 to 15 frames, median 15", "ada", "[4] jumps by 2π"):
        assert part in text


def test_images_are_not_read_for_info(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/img": np.ones((40, 64, 64, 3), np.uint8)})
    image = next(array for array in summarize(path).arrays if array.name == "data/img")
    assert (image.minimum, image.dtype, image.shape) == (None, "uint8", (40, 64, 64, 3))


def test_info_rejects_damaged_stores(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/action": np.full((40, 2), np.nan)})
    with pytest.raises(EpisodeError, match=r"data/action\[0\] at frame 0"):
        summarize(path)


def test_only_columns_that_wrap_look_like_angles() -> None:
    turning = np.linspace(0, 20, 60)
    columns = [turning % (2 * np.pi), (turning + np.pi) % (2 * np.pi) - np.pi, turning, np.tile([0, 500], 30)]
    jump_between_episodes = np.repeat([0.1, 6.2], 30)
    values = np.stack([*columns, jump_between_episodes], axis=1).astype(np.float32)
    assert find_wrapped_columns(values, np.array([30, 60])) == [0, 1]


def test_check_accepts_an_undamaged_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataCheck(store).run()
    assert capsys.readouterr().out == f"OK: {store} is complete and readable\n"


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

    with pytest.raises(DemoError, match="has 9 problem"):
        DataCheck(path).run()

    printed = capsys.readouterr().out
    for part in (
        "chunk data/state/1.0 is missing",
        "chunk data/state/2.0 is missing",
        "data/extra/.zarray is not valid JSON",
        "data/img: frames 30 to 40 cannot be decoded",
        "data/short 9",
        "data/action: 20 NaN or infinite numbers in frames 0 to 10",
    ):
        assert part in printed


def test_check_accepts_omitted_chunks_on_request(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", {"data/action": np.zeros((40, 2))}, every_chunk=False)
    assert len(check_store(path)) == 4
    assert check_store(path, accept_omitted_chunks=True) == []


def test_check_raises_if_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="does not exist"):
        DataCheck(tmp_path / "nothing").run()
    write_store(
        tmp_path / "bare.zarr", dict.fromkeys(["data/state", "data/action", "data/keypoint", "data/img"])
    )
    with pytest.raises(DemoError, match="problem"):
        DataCheck(tmp_path / "bare.zarr").run()
