"""Tests of HDF5 files as robomimic, Isaac Lab, ALOHA and D4RL write them."""

import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from PIL import Image

from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.cli.main import main
from nsde_policy.data import load_demonstrations
from nsde_policy.data.check import check_store
from nsde_policy.data.images import open_images
from nsde_policy.data.readers import open_source
from nsde_policy.data.summary import summarize
from nsde_policy.errors import DemoError
from tests.helpers.demo_stores import edit_bytes

LENGTHS = {"demo_0": 6, "demo_2": 4, "demo_10": 5}
ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, "robots": ["Panda"]}}


def example(name: str, frames: int) -> dict[str, np.ndarray]:
    """Return the arrays of an episode as robomimic's dataset_states_to_obs.py writes them."""
    rng = np.random.default_rng(int(name.split("_")[1]))
    arrays = {
        "actions": rng.uniform(-1, 1, (frames, 7)),
        "states": rng.normal(size=(frames, 32)),
        "rewards": np.zeros(frames),
        "dones": np.eye(frames)[-1].astype(np.int64),
        "obs/object": rng.normal(size=(frames, 10)),
        "obs/robot0_eef_pos": rng.normal(size=(frames, 3)),
        "obs/robot0_eef_quat": rng.normal(size=(frames, 4)),
        "obs/robot0_gripper_qpos": rng.normal(size=(frames, 2)),
        "obs/robot0_joint_pos": rng.normal(size=(frames, 7)),
        "obs/agentview_image": rng.integers(0, 255, (frames, 8, 9, 3)).astype(np.uint8),
    }
    next_obs = {f"next_{key}": values for key, values in arrays.items() if key.startswith("obs/")}
    return arrays | next_obs


def write_robomimic(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(total=sum(LENGTHS.values()), env_args=json.dumps(ENV_ARGS))
        for number, (name, frames) in enumerate(LENGTHS.items()):
            demo = data.create_group(name)
            demo.attrs.update(num_samples=frames, seed=number, model_file="<mujoco/>")
            for key, values in example(name, frames).items():
                options = {"compression": "gzip", "chunks": (2, *values.shape[1:])} if "image" in key else {}
                demo.create_dataset(key, data=values, **options)
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
    return path


def write_jpeg(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="JPEG", quality=95)
    return buffer.getvalue()


def write_aloha(folder: Path, *, compress: bool, episodes: int = 11) -> Path:
    """Write one file for each episode as act-plus-plus does; compressed images are padded to equal size."""
    folder.mkdir(exist_ok=True)
    for episode in range(episodes):
        rng, frames = np.random.default_rng(episode), 3 + episode
        with h5py.File(folder / f"episode_{episode}.hdf5", "w") as file:
            file.attrs.update(sim=False, compress=compress)
            for key in ("observations/qpos", "observations/qvel", "observations/effort", "action"):
                file[key] = rng.normal(size=(frames, 14)).astype(np.float32)
            file["base_action"] = rng.normal(size=(frames, 2)).astype(np.float32)
            lengths = np.zeros((2, frames))
            for i, camera in enumerate(("cam_high", "cam_left_wrist")):
                images = np.full((frames, 24, 32, 3), 5 * episode + i, np.uint8)
                if compress:
                    encoded = [write_jpeg(image) for image in images]
                    lengths[i] = [len(content) for content in encoded]
                    size = max(map(len, encoded)) + episode
                    images = np.stack([np.frombuffer(c.ljust(size, b"\0"), np.uint8) for c in encoded])
                file[f"observations/images/{camera}"] = images
            if compress:
                file["compress_len"] = lengths
    return folder


def write_d4rl(path: Path, ends: tuple[int, ...] = (5, 12), frames: int = 20, **change: Any) -> Path:
    rng = np.random.default_rng(0)
    flags = np.isin(np.arange(frames), np.array(ends) - 1)
    observations = rng.normal(size=(frames + 1, 4)).astype(np.float32)
    arrays = {
        "observations": observations[:-1],
        "next_observations": observations[1:],
        "actions": rng.uniform(-1, 1, (frames, 2)).astype(np.float32),
        "rewards": np.zeros(frames, np.float32),
        "terminals": flags & (np.arange(frames) < ends[0]),
        "timeouts": flags & (np.arange(frames) >= ends[0]),
    } | change
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            if values is not None:
                file[key] = values
    return path


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


def test_the_same_demonstrations_as_zarr_and_as_hdf5_are_identical(tmp_path: Path) -> None:
    original = load_demonstrations(EMBEDDED_DEMOS)
    path = tmp_path / "pusht.hdf5"
    with h5py.File(path, "w") as file:
        for number, episode in enumerate(original):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = len(episode)
            demo["obs/state"], demo["actions"] = episode.obs, episode.act
    demos = load_demonstrations(path, angles=original.angles)
    assert demos.fingerprint == original.fingerprint
    assert demos.episode_fingerprints == original.episode_fingerprints


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
    before = len(os.listdir("/proc/self/fd"))
    with open_source(folder) as source:
        source.open_array("observations/qpos").read_checked()
        assert len(os.listdir("/proc/self/fd")) <= before + 32
    assert len(os.listdir("/proc/self/fd")) == before


def test_d4rl_episodes_end_at_terminals_and_timeouts(tmp_path: Path) -> None:
    demos = load_demonstrations(write_d4rl(tmp_path / "d4rl.hdf5"))
    assert demos.lengths.tolist() == [5, 7, 8]


def test_a_single_d4rl_frame_behind_the_last_end_is_left_out(tmp_path: Path) -> None:
    demos = load_demonstrations(write_d4rl(tmp_path / "d4rl.hdf5", ends=(5, 19)))
    assert demos.lengths.tolist() == [5, 14]
    assert len(demos.obs) == 19


def test_real_files_load_with_what_the_errors_ask_for(shared_demos: Path) -> None:
    d4rl = load_demonstrations(shared_demos / "formats/d4rl_expert.hdf5", rate_hz=20)
    assert (len(d4rl), d4rl.obs.shape, d4rl.act.shape) == (20, (10000, 12), (10000, 3))
    raw = shared_demos / "formats/robosuite_lift_raw.hdf5"
    with pytest.raises(DemoError, match=r"without observations.*begin with time; use --obs-keys states"):
        load_demonstrations(raw)
    demos = load_demonstrations(raw, obs_keys=["states"])
    assert (demos.lengths.tolist(), demos.rate_hz) == ([482, 510, 392], 20)


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


class Damage(NamedTuple):
    """A kind of damage, and a part of the expected message."""

    name: str
    make: Callable[[Path], Path]
    """Write a damaged file to the given path and return its path."""
    message: str
    load: Callable[[Path], object] = load_demonstrations


def robomimic(change: Callable[[h5py.File], object]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        with h5py.File(write_robomimic(path), "a") as file:
            change(file)
        return path

    return make


def replace(name: str, values: Any) -> Callable[[Path], Path]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = values

    return robomimic(change)


def on_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        edit_bytes(write_robomimic(path), change)
        return path

    return make


def make_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def aloha(change: Callable[[h5py.File], object], episode: int = 1) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        folder = write_aloha(path.with_suffix(""), compress=True, episodes=3)
        with h5py.File(folder / f"episode_{episode}.hdf5", "a") as file:
            change(file)
        return folder

    return make


def d4rl(**change: Any) -> Callable[[Path], Path]:
    return lambda path: write_d4rl(path, **change)


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


def declare_many_frames(file: h5py.File) -> None:
    for name in LENGTHS:
        demo = file[f"data/{name}"]
        demo.attrs["num_samples"] = 10**12
        for key in ("actions", "states", *(f"obs/{key}" for key in demo["obs"])):
            shape, dtype = demo[key].shape[1:], demo[key].dtype
            del demo[key]
            demo.create_dataset(key, (10**12, *shape), dtype, chunks=(1, *shape))


def with_nan() -> np.ndarray:
    values = example("demo_2", 4)["obs/object"]
    values[1, 3] = np.nan
    return values


def damage_jpeg(file: h5py.File) -> None:
    file["observations/images/cam_high"][2, 30:] = 0


def change_jpeg_size(file: h5py.File) -> None:
    content = np.frombuffer(write_jpeg(np.zeros((8, 8, 3), np.uint8)), np.uint8)
    array = file["observations/images/cam_high"]
    array[2, : len(content)] = content[: array.shape[1]]


OBJECT, POSITION = "data/demo_2/obs/object", "data/demo_2/obs/robot0_eef_pos"


def read_camera(path: Path) -> object:
    return open_images(path, key="observations/images/cam_high")[:]


DAMAGES = [
    # the file
    Damage("missing file", lambda path: path, "lift.hdf5 cannot be read: No such file"),
    Damage("empty file", on_bytes(lambda _: b""), "not an undamaged HDF5 file"),
    Damage("truncated", on_bytes(lambda content: content[: len(content) // 2]), "truncated file"),
    Damage("no HDF5", on_bytes(lambda _: b"PK" * 999), "file signature not found"),
    Damage("pipe", make_pipe, "is not a regular file"),
    Damage(
        "other content",
        robomimic(lambda file: file.move("data", "x")),
        "holds: mask/train, x/.* expected",
    ),
    Damage(
        "no episodes",
        robomimic(lambda file: [file["data"].pop(k) for k in LENGTHS]),
        "holds: mask/train; ex",
    ),
    # episodes
    Damage(
        "no actions", robomimic(lambda f: f.pop("data/demo_10/actions")), "/data/demo_10 in .* has no actions"
    ),
    Damage("missing key", robomimic(lambda f: f.pop(POSITION)), "demo_2 in .* has no obs/robot0_eef_pos"),
    Damage(
        "missing key in the first",
        robomimic(lambda f: f.pop("data/demo_0/obs/object")),
        "demo_0 in .* has no",
    ),
    Damage(
        "unequal lengths", replace(OBJECT, np.ones((3, 10))), r"demo_2/obs/object .*\(3, 10\), .*\(4, 10\)"
    ),
    Damage("other columns", replace(OBJECT, np.ones((4, 9))), r"demo_2/obs/object .* \(4, 9\), expected"),
    Damage(
        "other type", replace(OBJECT, np.ones((4, 10), "f4")), "object in .* is float32 .* expected float64"
    ),
    Damage("scalar", replace(OBJECT, 1.0), r"object in .* is float64 \(\), expected"),
    Damage(
        "num_samples",
        robomimic(lambda f: f["data/demo_2"].attrs.update(num_samples=9)),
        "4 actions, but .* 9",
    ),
    Damage("one frame", lambda path: write_short(path), "episode 0 is too short"),
    # values
    Damage("NaN", replace(OBJECT, with_nan()), r"nan in obs/object\[3\] at frame 7 \(episode 1, step 1\)"),
    Damage("text", replace("data/demo_0/obs/object", np.array([b"x"] * 6)), "expected real numbers"),
    Damage("complex", replace("data/demo_0/obs/object", np.ones((6, 10), "c8")), "expected real numbers"),
    # metadata
    Damage(
        "no JSON",
        robomimic(lambda f: f["data"].attrs.update(env_args="{")),
        "env_args .* not valid JSON",
    ),
    Damage(
        "no rate",
        robomimic(lambda f: f["data"].attrs.update(env_args='{"env_kwargs": {"control_freq": "fast"}}')),
        "rate_hz must be a positive number .* 'fast'",
    ),
    # what could be unsafe, or huge
    Damage("external link", robomimic(add_external_link), "secret .* is not followed"),
    Damage("virtual dataset", robomimic(add_virtual), "secret .* is stored elsewhere"),
    Damage(
        "loop",
        robomimic(lambda f: f.update({"data/demo_2/obs/x": h5py.SoftLink("/data")})),
        "x .* is not followed",
    ),
    Damage("huge chunks", robomimic(declare_huge_chunks), "a chunk would take 1600000000 bytes"),
    Damage("huge arrays", robomimic(declare_many_frames), "frames would take"),
    Damage("unwritten chunks", robomimic(leave_chunks_unwritten), "object .* incomplete: 2 of 4 chunks"),
    # ALOHA
    Damage(
        "no qpos",
        aloha(lambda f: f.pop("observations/qpos")),
        "/ in .*episode_1.hdf5 has no observations/qpos",
    ),
    Damage(
        "only images",
        lambda path: write_images_only(path),
        "no array 'state' .* observations/images/cam_high",
    ),
    Damage(
        "mixed formats", aloha(lambda f: f.move("action", "actions")), "episode_1.hdf5 has neither terminals"
    ),
    Damage("broken JPEG", aloha(damage_jpeg), "cam_high .*, row 2, is not an undamaged JPEG", read_camera),
    Damage(
        "JPEG size",
        aloha(change_jpeg_size),
        r"row 2, is uint8 \(8, 8, 3\), not ",
        read_camera,
    ),
    # D4RL
    Damage("no ends", d4rl(terminals=None, timeouts=None), "neither terminals nor timeouts"),
    Damage(
        "too few flags", d4rl(terminals=np.zeros(19, bool)), r"terminals in .* \(19,\), expected bool \(20,\)"
    ),
    Damage(
        "too few observations", d4rl(observations=np.zeros((18, 4))), r"observations in .* \(18, 4\), exp"
    ),
    Damage("ends in a row", d4rl(ends=(5, 6)), "episode 1 is too short"),
]


def write_short(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/x"], file["data/demo_0/actions"] = np.ones((1, 2)), np.ones((1, 2))
    return path


def write_images_only(path: Path) -> Path:
    folder = write_aloha(path.with_suffix(""), compress=False, episodes=1)
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        for name in ("qpos", "qvel", "effort"):
            del file[f"observations/{name}"]
    return folder


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_is_rejected(tmp_path: Path, damage: Damage) -> None:
    path = damage.make(tmp_path / "lift.hdf5")
    with pytest.raises(DemoError, match=damage.message) as caught:
        damage.load(path)
    assert "\n" not in str(caught.value)


def test_the_command_line_lists_what_there_is_and_finds_every_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = robomimic(leave_chunks_unwritten)(tmp_path / "lift.hdf5")
    (found,) = check_store(path)
    assert f"/{OBJECT} in {path} is incomplete: 2 of 4 chunks were written" in found
    assert main(["data", "info", str(write_robomimic(path))]) == 0
    said = capsys.readouterr().out
    assert "3 episodes, 15 frames, 20 Hz" in said
    assert "can be cameras: --images obs/agentview_image" in said


def test_corrupted_bytes_raise_only_demo_errors(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        corrupted = np.frombuffer(whole, np.uint8).copy()
        corrupted[rng.integers(len(whole), size=4)] = rng.integers(256, size=4)
        path.write_bytes(corrupted.tobytes())
        try:
            demos = load_demonstrations(path)
        except DemoError:
            continue
        assert np.isfinite(demos.obs).all()
