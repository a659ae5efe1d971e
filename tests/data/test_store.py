"""Tests for data/zarr_store/store.py and readers/zarr.py; damaged stores are in test_damage.py."""

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

from nsde_policy.data import load_demonstrations
from nsde_policy.data.readers import Reader, registry
from nsde_policy.data.source import MemoryArray, MemorySource, join_columns
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import ENDS, example_arrays, write_store, zip_store


@pytest.mark.parametrize(
    ("packing", "folder_in_zip"),
    [
        ({}, None),
        ({}, "."),
        ({"compressors": None}, "demos.zarr"),
        ({"compressors": numcodecs.Blosc()}, None),
        ({"compressors": numcodecs.GZip(), "filters": [numcodecs.Shuffle(4)]}, "."),
        ({"zarr_format": 3}, "demos.zarr"),
        ({"zarr_format": 3, "compressors": None}, None),
        ({"zarr_format": 3, "compressors": BloscCodec()}, "."),
    ],
)
def test_formats_and_containers_load_equal_demonstrations(
    tmp_path: Path, packing: dict[str, Any], folder_in_zip: str | None
) -> None:
    path = write_store(tmp_path / "demos.zarr", **packing)
    path = zip_store(path, inside=folder_in_zip) if folder_in_zip else path

    demos = load_demonstrations(path, angles=(4,), rate_hz=10)

    arrays = example_arrays()
    np.testing.assert_array_equal(demos.obs, arrays["data/state"])
    np.testing.assert_array_equal(demos.act, arrays["data/action"].astype(np.float32))
    np.testing.assert_array_equal(demos.episode_ends, ENDS)
    assert (demos.angles, demos.rate_hz, demos.source) == ((4,), 10, str(path))
    assert demos.obs.dtype == demos.act.dtype == np.float32


def test_sharded_arrays_are_loaded(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr", zarr_format=3)
    values = example_arrays()["data/state"]
    sizes = {"shape": (40, 5), "chunks": (5, 5), "shards": (15, 5), "compressors": BloscCodec()}
    array = zarr.open_group(path)["data"].create_array("state", dtype="f4", overwrite=True, **sizes)
    array[:] = values
    np.testing.assert_array_equal(load_demonstrations(path).obs, values)


def test_other_names_sizes_types_and_nested_arrays_are_loaded(tmp_path: Path) -> None:
    arm = np.arange(40 * 7, dtype=np.int16).reshape(40, 7)
    change = {"data/obs/joints": arm, "data/gripper": np.arange(40) % 2 == 0}
    path = write_store(tmp_path / "arm.zarr", {"data/state": None, "data/action": None, **change})
    demos = load_demonstrations(path, obs_keys=["keypoint", "obs/joints"], act_key="gripper")
    np.testing.assert_array_equal(demos.obs[:, :18], example_arrays()["data/keypoint"].reshape(-1, 18))
    np.testing.assert_array_equal(demos.obs[:, 18:], arm)
    assert demos.act.shape == (40, 1)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_angles_and_rate_default_to_attributes(tmp_path: Path, zarr_format: int) -> None:
    path = write_store(tmp_path / "demos.zarr", zarr_format=zarr_format, attributes={"rate_hz": 20})
    group = zarr.open_group(path)
    group["data/state"].attrs["angles"] = [4]
    group["data/action"].attrs["angles"] = [1]

    demos = load_demonstrations(path, obs_keys=("keypoint", "state"))
    assert (demos.angles, demos.act_angles, demos.rate_hz) == ((22,), (1,), 20)
    explicit = load_demonstrations(path, angles=(), act_angles=(), rate_hz=5)
    assert (explicit.angles, explicit.act_angles, explicit.rate_hz) == ((), (), 5)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_omitted_chunks_are_accepted_only_on_request(tmp_path: Path, zarr_format: int) -> None:
    still = np.ones((40, 5), np.float32)
    still[10:20] = 0
    path = write_store(
        tmp_path / "demos.zarr", {"data/state": still}, zarr_format=zarr_format, every_chunk=False
    )
    with pytest.raises(DemoError, match=r"is missing.*--accept-omitted-chunks"):
        load_demonstrations(path)
    np.testing.assert_array_equal(load_demonstrations(path, accept_omitted_chunks=True).obs, still)


def test_readers_of_other_formats_need_not_know_of_omitted_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    state, action = np.arange(18, dtype=np.float32).reshape(9, 2), np.ones((9, 1), np.float32)
    arrays = {
        "joints": MemoryArray("joints", state, ["hip", "knee"]),
        "action": MemoryArray("action", action),
    }

    class OtherReader(Reader):
        name = "other"

        def probe(self, path):
            return True

        def open(self, path):
            return MemorySource(path, "other", arrays, [4, 9], conventions={"state": ("joints",)})

    monkeypatch.setattr(registry, "find_reader", lambda path: OtherReader())
    loaded = load_demonstrations("x.csv", rate_hz=5, accept_omitted_chunks=True)
    np.testing.assert_array_equal(loaded.obs, state)
    assert (loaded.rate_hz, loaded.source, loaded.obs_names) == (5, "x.csv", ("hip", "knee"))
    assert loaded.act_names == ("action[0]",)


def test_the_last_part_of_a_name_is_enough_if_it_is_unique() -> None:
    rows = MemoryArray("x", np.ones((4, 2), np.float32))
    names = ("observation.images.top", "obs/wrist", "left/force", "right/force")
    source = MemorySource(Path("x"), "other", dict.fromkeys(names, rows), [4])
    assert [source.resolve(key) for key in ("top", "wrist", "force")] == [
        (names[0],),
        (names[1],),
        ("force",),
    ]


def test_columns_are_counted_before_they_are_named() -> None:
    wide = MemoryArray("wide", np.broadcast_to(np.zeros(1, bool), (2, 10**12)))
    with pytest.raises(DemoError, match="1000000000000 numbers a frame, expected at most"):
        join_columns([wide], np.array([2]))
