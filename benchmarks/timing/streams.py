"""Training steps on a store that is read from disk meanwhile, against the same store in memory."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from nsde_policy.eval.latency import device_name
from nsde_policy.tasks import get_task
from nsde_policy.training.run import TrainOptions
from nsde_policy.training.train import train_task
from timing.common import Options, peak_memory, run_fresh

FRAMES, COLUMNS, EPISODE, WINDOW_MB = 400_000, 26, 500, 64


def measure_stream(options: Options) -> list[dict[str, Any]]:
    """Train by turns in new processes; the first record, in which the window is filled, is left out."""
    frames, turns, every = (20_000, 1, 2) if options.smoke else (FRAMES, 3, 50)
    with tempfile.TemporaryDirectory() as folder:
        group = zarr.open_group(Path(folder) / "demos.zarr", mode="w", attributes={"rate_hz": 30.0})
        walk = np.cumsum(
            np.random.default_rng(0).normal(0, 0.01, (frames, COLUMNS)), axis=0, dtype=np.float32
        )
        ends = np.arange(EPISODE, frames + 1, EPISODE)
        for name, values in (("data/state", walk), ("data/action", walk[:, :8]), ("meta/episode_ends", ends)):
            group.create_array(name, data=values, chunks=(min(len(values), 10_000), *values.shape[1:]))
        windows = (0, frames * WINDOW_MB // FRAMES)
        runs = [
            [run_fresh(_train, folder, window, every, options.device) for window in windows]
            for _ in range(turns)
        ]
    memory, stream = np.median(runs, axis=0).tolist()
    figures = {"step_ms": 0, "cpu_ms": 1, "memory_mb": 2}
    row = {
        f"{name}_{kind}": each[i]
        for name, i in figures.items()
        for kind, each in (("in_memory", memory), ("streamed", stream))
    }
    return [{"device": device_name(options.device), **row, "throughput_ratio": memory[0] / stream[0]}]


def _train(folder: str, window_mb: int, every: int, device: str) -> tuple[float, float, float]:
    """Return the time of a step on the wall clock and of the processor, ms, and the peak memory, MB."""
    torch.set_num_threads(1)
    moments: list[tuple[float, float]] = []
    config = (
        get_task("none")
        .preset("fast", "neural_sde")
        .replace_parts(train={"steps": 10 * every, "log_every": every}, demos={"window_mb": window_mb})
    )
    with tempfile.TemporaryDirectory() as out:
        train_task(
            Path(folder) / "demos.zarr",
            config,
            Path(out) / "run",
            task="none",
            seed=0,
            monitor=lambda _: moments.append((time.perf_counter(), time.process_time())),
            options=TrainOptions(device=device, save_every_s=1e9),
        )
    wall, cpu = 1e3 * np.median(np.diff(moments, axis=0), axis=0) / every
    return float(wall), float(cpu), peak_memory()
