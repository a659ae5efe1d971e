"""A barely trained Push-T policy from camera frames, made with the command in about two seconds."""

from pathlib import Path

import numpy as np

from nsde_policy.cli.main import main
from nsde_policy.envs.pusht.drawing import benchmark_frame
from tests.helpers.demo_stores import write_store

KEYPOINTS = 2


def write_pixel_store(path: Path) -> Path:
    """Write random states of Push-T with their frames."""
    rng = np.random.default_rng(0)
    state = rng.uniform(100, 400, (40, 5)).astype(np.float32)
    frames = np.stack([benchmark_frame(row[:2], row[2:]) for row in state])
    return write_store(path, {"data/state": state, "data/img": frames})


def train_pixel_run(folder: Path) -> Path:
    """Train on `folder/store.zarr` and return the run directory."""
    store = write_pixel_store(folder / "store.zarr")
    settings = {"train.steps": 1, "train.batch-size": 2, "width": 8, "keypoints": KEYPOINTS, "anchors": 0}
    settings["occlusion-steps"] = 0
    flags = [part for name, value in settings.items() for part in (f"--encoder.{name}", str(value))]
    flags += ["--train.steps", "20", "--model.network.width", "16", "--out", str(folder / "run")]
    train = ["train", "--demos", str(store), "--task", "pusht", "--obs", "pixels", "--device", "cpu"]
    assert main([*train, *flags, "--select", "none"]) == 0
    return folder / "run"
