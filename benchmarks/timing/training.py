"""Cost of training by the size of the data."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.data import Demonstrations
from nsde_policy.data.statistics import measure_statistics
from nsde_policy.eval.machine import device_name
from nsde_policy.tasks import get_task
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import pick_device, train_run
from timing.common import MB, Options, peak_memory, run_fresh

SIZES, FRAMES = (7, 26, 100, 400), (1_000, 10_000, 100_000, 1_000_000)
BASE_SIZE, BASE_FRAMES, EPISODE = 26, 100_000, 500


def measure_training(options: Options) -> list[dict[str, Any]]:
    """Train a few steps with the settings of `auto` on random walks of a position-controlled robot."""
    points = [(size, BASE_FRAMES) for size in SIZES] + [(BASE_SIZE, frames) for frames in FRAMES]
    points = [(7, 1_000)] if options.smoke else list(dict.fromkeys(points))
    return [run_fresh(_train_walks, *point, options.device) for point in points]


def _train_walks(size: int, frames: int, device: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.zeros(1, device=device)
    act_dim, rng = max(size // 3, 1), np.random.default_rng(0)
    steps = rng.normal(0, 0.01, (frames, size - act_dim)).astype(np.float32)
    obs = np.cumsum(steps, axis=0, dtype=np.float32)
    act = np.roll(obs, -1, axis=0)[:, :act_dim].copy()  # each command is the next position of one column
    demos = Demonstrations(obs, act, np.arange(EPISODE, frames + 1, EPISODE), rate_hz=30.0)
    held, started, ticks = peak_memory(), time.perf_counter(), list[float]()
    config = get_task("none").preset("auto", statistics=measure_statistics(demos))
    full, every = config.train.steps, 300
    config = config.replace_parts(
        train={"steps": 2 * every, "log_every": every}, selection={"select": "none"}
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        note = lambda progress: ticks.append(time.perf_counter())  # noqa: E731
        train_run(demos, config, path, options=TrainOptions(device=pick_device(device), monitor=note))
    step_s = (ticks[1] - ticks[0]) / every
    return {
        "size": size,
        "frames": frames,
        "width": config.model.network.width,  # type: ignore[attr-defined]
        "steps": full,
        "prepare_s": ticks[0] - started - step_s * every,
        "step_ms": 1e3 * step_s,
        "train_s": step_s * full,
        "memory_mb": peak_memory() - held,
        "gpu_memory_mb": torch.cuda.max_memory_allocated() / MB if device == "cuda" else None,
        "device": device_name(device),
        "torch": torch.__version__,
    }
