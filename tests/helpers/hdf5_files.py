"""HDF5 files as robomimic, ALOHA and D4RL write them."""

import io
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

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
