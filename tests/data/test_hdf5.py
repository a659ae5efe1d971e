"""Tests of HDF5 files as robomimic, Isaac Lab, ALOHA and D4RL write them, and of damaged ones."""

import json
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.images import open_images
from nsde_policy.data.readers import open_source
from nsde_policy.data.summary import summarize
from tests.helpers.damage import Damage
from tests.helpers.demo_stores import edit_bytes
from tests.helpers.hdf5_files import ENV_ARGS, LENGTHS, example, write_aloha, write_d4rl, write_robomimic


def test_robomimic_files_give_robomimics_default_observations_in_the_order_of_the_numbers(
    tmp_path: Path,
) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    demos = load_demonstrations(path)
    assert demos.lengths.tolist() == list(LENGTHS.values())
    assert demos.rate_hz == 20
    keys = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object")
    assert demos.obs_names[:4] == (
        "robot0_eef_pos[0]",
        "robot0_eef_pos[1]",
        "robot0_eef_pos[2]",
        "robot0_eef_quat[0]",
    )
    for episode, (name, frames) in zip(demos, LENGTHS.items(), strict=True):
        arrays = example(name, frames)
        expected = np.concatenate([arrays[f"obs/{key}"] for key in keys], axis=1)
        np.testing.assert_array_equal(episode.obs, expected.astype(np.float32))
        np.testing.assert_array_equal(episode.act, arrays["actions"].astype(np.float32))
    with open_source(path) as source:
        assert source.attributes == {"env_name": "Lift", "env_args": json.dumps(ENV_ARGS)}
        assert not any(name.startswith(("next_obs", "rewards", "dones")) for name in source.find_arrays())


def test_images_are_read_lazily_across_episodes(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    images = open_images(path, key="obs/agentview_image")
    expected = np.concatenate([example(*item)["obs/agentview_image"] for item in LENGTHS.items()])
    assert images.shape == expected.shape
    np.testing.assert_array_equal(images[:], expected)
    np.testing.assert_array_equal(images[5:11], expected[5:11])
    np.testing.assert_array_equal(images[-1], expected[-1])
    assert images[3:3].shape == (0, 8, 9, 3)


def test_relatives_of_robomimic_give_all_low_dimensional_observations_but_no_actions(tmp_path: Path) -> None:
    """Isaac Lab records the last action as an observation, nests states, and says nothing about the rate."""
    path = tmp_path / "isaac.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Isaac-Lift-v0", "type": 2})
        for k in range(2):
            demo = file.create_group(f"data/demo_{k}")
            demo.attrs["num_samples"] = 4
            for key, width in {"actions": 3, "obs/actions": 3, "obs/joint_pos": 5, "obs/cube": 2}.items():
                demo[key] = np.full((4, width), k, np.float32)
            demo["obs/table_cam"] = np.zeros((4, 16, 16, 3), np.uint8)
            demo["states/articulation/robot/joint_position"] = np.zeros((4, 5), np.float32)
            demo["initial_state/articulation/robot/joint_position"] = np.zeros((1, 5), np.float32)
    demos = load_demonstrations(path)
    assert demos.obs_names == ("cube[0]", "cube[1]", *(f"joint_pos[{i}]" for i in range(5)))
    assert demos.rate_hz is None
    with open_source(path) as source:
        assert "states/articulation/robot/joint_position" in source.find_arrays()
        assert "initial_state/articulation/robot/joint_position" not in source.find_arrays()


@pytest.mark.parametrize("compress", [False, True])
def test_aloha_folders_are_read_with_raw_and_compressed_images(tmp_path: Path, compress: bool) -> None:
    folder = write_aloha(tmp_path / "aloha", compress=compress)
    demos = load_demonstrations(folder, rate_hz=50)
    assert demos.lengths.tolist() == list(range(3, 14))
    qpos = np.random.default_rng(10).normal(size=(13, 14))
    np.testing.assert_array_equal(demos[10].obs, qpos.astype(np.float32))
    images = open_images(folder, key="observations/images/cam_left_wrist")
    assert images.shape == (88, 24, 32, 3)
    brightness = images[:].mean((1, 2, 3))
    expected = np.repeat(5 * np.arange(11) + 1, range(3, 14))
    np.testing.assert_allclose(brightness, expected, atol=2)
    assert check_store(folder) == []
    with open_source(folder / "episode_3.hdf5") as source:
        assert source.format == "ALOHA HDF5"
        assert source.read_ends().tolist() == [6]
        assert "compress_len" not in source.find_arrays()


def test_more_aloha_files_than_may_be_open_at_the_same_time(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "aloha", compress=False, episodes=40)

    def count_open() -> int:
        files = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(file.startswith(str(folder)) for file in files)

    with open_source(folder) as source:
        source.open_array("observations/qpos").read_checked()
        assert 0 < count_open() <= 32
    assert count_open() == 0


def test_d4rl_episodes_end_at_terminals_and_timeouts(tmp_path: Path) -> None:
    demos = load_demonstrations(write_d4rl(tmp_path / "d4rl.hdf5"))
    assert demos.lengths.tolist() == [5, 7, 8]


def test_a_real_file_loads(shared_demos: Path) -> None:
    d4rl = load_demonstrations(shared_demos / "formats/d4rl_expert.hdf5", rate_hz=20)
    assert (len(d4rl), d4rl.obs.shape, d4rl.act.shape) == (20, (10000, 12), (10000, 3))


def test_a_large_file_opens_without_reading_its_images(tmp_path: Path) -> None:
    path, frames = tmp_path / "large.hdf5", 1200
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # leaves a hole in the file
    created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        for k in range(10):
            demo = file.create_group(f"data/demo_{k}")
            demo["actions"], demo["obs/joints"] = np.ones((frames, 7)), np.ones((frames, 7))
            space = h5py.h5s.create_simple((frames, 480, 640, 3))
            h5py.h5d.create(demo["obs"].id, b"front_image", h5py.h5t.NATIVE_UINT8, space, created)
    assert path.stat().st_size > 10e9 > 1e8 > path.stat().st_blocks * 512
    tracemalloc.start()
    summary = summarize(path)
    images = open_images(path, key="obs/front_image")
    assert images[7000].max() == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert summary.frames == len(images) == 12000
    assert peak < 50e6


def robomimic(change: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with h5py.File(write_robomimic(path), "a") as file:
            change(file)

    return make


def replace(name: str, values: Any) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = values

    return robomimic(change)


def aloha(change: Callable[[h5py.File], object], episode: int = 1) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        folder = write_aloha(path.with_suffix(""), compress=True, episodes=3)
        with h5py.File(folder / f"episode_{episode}.hdf5", "a") as file:
            change(file)
        return folder

    return make


def add_external_link(file: h5py.File) -> None:
    file["data/demo_2/obs/secret"] = h5py.ExternalLink("other.hdf5", "/data")


def add_virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4, 2), float)
    layout[:] = h5py.VirtualSource("other.hdf5", "x", (4, 2))
    file["data/demo_2"].create_virtual_dataset("obs/secret", layout)


def leave_chunks_unwritten(file: h5py.File) -> None:
    del file["data/demo_2/obs/object"]
    array = file["data/demo_2"].create_dataset("obs/object", (4, 10), float, chunks=(1, 10))
    array[:2] = 1


def declare_huge_chunks(file: h5py.File) -> None:
    for name, frames in LENGTHS.items():
        del file[f"data/{name}/obs/object"]
        file[f"data/{name}"].create_dataset(
            "obs/object", (frames, 10), float, chunks=(20_000_000, 10), maxshape=(None, 10)
        )


def with_nan() -> np.ndarray:
    values = example("demo_2", 4)["obs/object"]
    values[1, 3] = np.nan
    return values


def damage_jpeg(file: h5py.File) -> None:
    file["observations/images/cam_high"][2, 30:] = 0


def enlarge_image(file: h5py.File) -> None:
    """Write the beginning of a PNG of 95 million pixels."""
    header = b"IHDR" + struct.pack(">2I5B", 10_000, 9_500, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    png += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    file["observations/images/cam_high"][2, : len(png)] = np.frombuffer(png, np.uint8)


def nest_groups(file: h5py.File) -> None:
    group: Any = file
    for _ in range(50):
        group = group.create_group("g")


OBJECT, POSITION = "data/demo_2/obs/object", "data/demo_2/obs/robot0_eef_pos"


def read_everything(path: Path) -> None:
    load_demonstrations(path)
    if path.is_dir():
        open_images(path, key="observations/images/cam_high")[:]


DAMAGES = [
    # the file
    Damage("missing file", lambda path: path, "lift.hdf5 cannot be read: No such file"),
    Damage(
        "truncated", lambda p: edit_bytes(write_robomimic(p), lambda b: b[: len(b) // 2]), "truncated file"
    ),
    # episodes
    Damage(
        "no actions", robomimic(lambda f: f.pop("data/demo_10/actions")), "/data/demo_10 in .* has no actions"
    ),
    Damage("missing key", robomimic(lambda f: f.pop(POSITION)), "demo_2 in .* has no obs/robot0_eef_pos"),
    Damage(
        "unequal lengths", replace(OBJECT, np.ones((3, 10))), r"demo_2/obs/object .*\(3, 10\), .*\(4, 10\)"
    ),
    # values
    Damage("NaN", replace(OBJECT, with_nan()), r"nan in obs/object\[3\] at frame 7 \(episode 1, step 1\)"),
    # what could be unsafe, or huge
    Damage("external link", robomimic(add_external_link), "secret .* is not followed"),
    Damage("virtual dataset", robomimic(add_virtual), "secret .* is stored elsewhere"),
    Damage("huge chunks", robomimic(declare_huge_chunks), "a chunk would take 1600000000 bytes"),
    Damage("unwritten chunks", robomimic(leave_chunks_unwritten), "object .* incomplete: 2 of 4 chunks"),
    # ALOHA
    Damage("broken JPEG", aloha(damage_jpeg), "cam_high .*, row 2, is not an undamaged JPEG"),
    Damage("nested groups", aloha(nest_groups), "groups in groups, g/g/g"),
    Damage("huge PNG", aloha(enlarge_image), "row 2, is not an undamaged .* exceeds limit"),
    # D4RL
    Damage("no ends", partial(write_d4rl, terminals=None, timeouts=None), "neither terminals nor timeouts"),
    Damage(
        "too few flags",
        partial(write_d4rl, terminals=np.zeros(19, bool)),
        r"terminals in .* \(19,\), expected bool \(20,\)",
    ),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    damage.check(tmp_path / "lift.hdf5", read_everything)
