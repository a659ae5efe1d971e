"""Tests for data/zarr_store/store.py and readers/zarr.py; damaged stores are in test_damage.py."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from zarr.codecs import BloscCodec, GzipCodec

from nsde_policy.data import Demonstrations, Episode, load_demonstrations
from nsde_policy.data.readers import registry
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import ENDS, example_arrays, write_store, zip_store

PACKINGS: list[tuple[int, dict[str, Any]]] = [
    (2, {}),
    (2, {"compressors": None}),
    (2, {"compressors": numcodecs.Blosc()}),
    (2, {"compressors": numcodecs.GZip(), "filters": [numcodecs.Shuffle(4)]}),
    (3, {}),
    (3, {"compressors": None}),
    (3, {"compressors": BloscCodec()}),
    (3, {"compressors": GzipCodec()}),
]


@pytest.mark.parametrize(("zarr_format", "packing"), PACKINGS)
@pytest.mark.parametrize("container", ["directory", "zip", "zip with a folder"])
def test_formats_and_containers_load_equal_demonstrations(
    tmp_path: Path, zarr_format: int, packing: dict[str, Any], container: str
) -> None:
    path = write_store(tmp_path / "demos.zarr", zarr_format=zarr_format, **packing)
    if container != "directory":
        path = zip_store(path, inside="." if container == "zip" else "demos.zarr")

    demos = load_demonstrations(path, angles=(4,), rate_hz=10)

    arrays = example_arrays()
    np.testing.assert_array_equal(demos.obs, arrays["data/state"])
    np.testing.assert_array_equal(demos.act, arrays["data/action"].astype(np.float32))
    np.testing.assert_array_equal(demos.episode_ends, ENDS)
    assert (demos.angles, demos.rate_hz, demos.source) == ((4,), 10, str(path))
    assert demos.obs.dtype == demos.act.dtype == np.float32


@pytest.mark.parametrize("blosc", [False, True])
def test_sharded_arrays_are_loaded(tmp_path: Path, blosc: bool) -> None:
    from zarr import open_group

    path = write_store(tmp_path / "demos.zarr", zarr_format=3)
    values = example_arrays()["data/state"]
    packing = {"compressors": BloscCodec()} if blosc else {}
    array = open_group(path)["data"].create_array(
        "state", shape=(40, 5), chunks=(5, 5), shards=(15, 5), dtype="f4", overwrite=True, **packing
    )
    array[:] = values
    np.testing.assert_array_equal(load_demonstrations(path).obs, values)


def test_observation_arrays_are_flattened_and_concatenated(tmp_path: Path) -> None:
    path = write_store(tmp_path / "demos.zarr")
    demos = load_demonstrations(path, obs_keys=("keypoint", "state"), act_key="action")
    arrays = example_arrays()
    np.testing.assert_array_equal(demos.obs[:, :18], arrays["data/keypoint"].reshape(-1, 18))
    np.testing.assert_array_equal(demos.obs[:, 18:], arrays["data/state"])


def test_other_names_sizes_types_and_nested_arrays_are_loaded(tmp_path: Path) -> None:
    arm = np.arange(40 * 7, dtype=np.int16).reshape(40, 7)
    names = ("data/state", "data/action", "meta/episode_ends")
    path = write_store(
        tmp_path / "arm.zarr",
        {
            **dict.fromkeys(names),
            "data/obs/joints": arm,
            "data/gripper": np.arange(40) % 2 == 0,
            "meta/ends": np.array([20, 40], np.uint8),
        },
    )
    demos = load_demonstrations(path, obs_keys=["obs/joints"], act_key="gripper", episode_ends="ends")
    np.testing.assert_array_equal(demos.obs, arm)
    assert demos.act.shape == (40, 1)
    assert len(demos) == 2


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_angles_and_rate_default_to_attributes(tmp_path: Path, zarr_format: int) -> None:
    import zarr

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
    demos = Demonstrations.from_episodes([Episode(np.ones((9, 2), np.float32), np.ones((9, 1), np.float32))])

    class OtherReader:
        def load(self, path, *, obs_keys, act_key, angles, act_angles, rate_hz):
            return demos

    monkeypatch.setattr(registry, "find_reader", lambda path: OtherReader())
    assert load_demonstrations("x.csv", accept_omitted_chunks=True) is demos


def test_missing_observation_key_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="at least one"):
        load_demonstrations(write_store(tmp_path / "demos.zarr"), obs_keys=())


def test_human_demonstrations_are_loaded(human_demos: Path) -> None:
    demos = load_demonstrations(human_demos, angles=(4,), rate_hz=10)
    assert (len(demos), demos.obs.shape, demos.act.shape) == (206, (25_650, 5), (25_650, 2))
    assert (demos.lengths.min(), demos.lengths.max()) == (49, 246)
    assert demos.obs[:, 4].max() < 2 * np.pi


MEMORY = """
import sys, numpy, torch, zarr, zarr.storage

def resident(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

before = resident("VmRSS")
from nsde_policy.data import load_demonstrations, open_images
from nsde_policy.training.dataset import build_transitions
demos = load_demonstrations(sys.argv[1], angles=(4,))
pairs = build_transitions(demos, history=2, first_action_from=(0, 1))
images = open_images(sys.argv[1])
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_loading_states_uses_little_memory(human_demos: Path) -> None:
    checkout = Path(__file__).resolve().parents[2]
    run = [sys.executable, "-c", MEMORY, str(human_demos)]
    megabytes = float(subprocess.run(run, cwd=checkout, capture_output=True, text=True, check=True).stdout)
    assert megabytes < 250


def test_import_does_not_import_zarr_or_torch() -> None:
    checkout = Path(__file__).resolve().parents[2]
    code = "import sys, nsde_policy.data, nsde_policy.cli.data; assert not {'zarr', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True)
