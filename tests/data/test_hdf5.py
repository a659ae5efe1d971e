"""Tests of HDF5 files as robomimic, Isaac Lab, ALOHA and D4RL write them."""

import json
import os
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.images import open_images
from nsde_policy.data.readers import open_source
from nsde_policy.data.summary import summarize
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
