"""Cost of training by the size of the data, and of sampling an SDE."""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from torch import Tensor

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.networks import MLP
from nsde_policy.core.sde import AbstractSDE, Coefficients, euler_maruyama
from nsde_policy.data import Demonstrations
from nsde_policy.data.statistics import measure_statistics
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.eval.latency import device_name
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.tasks import get_task
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.run import train_run
from timing.common import MB, Options, own_memory, peak_memory, run_fresh

SIZES, FRAMES = (7, 26, 100, 400), (1_000, 10_000, 100_000, 1_000_000)
BASE_SIZE, BASE_FRAMES, EPISODE = 26, 100_000, 500
CAMERA_FRAMES, SIDE, BLOCK = (25_000, 250_000), 96, 1_000


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
    config = replace(config, train=replace(config.train, steps=2 * every, log_every=every))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        note = lambda progress: ticks.append(time.perf_counter())  # noqa: E731
        train_run(demos, config, path, task="none", seed=0, device=device, monitor=note)
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


def measure_frames(options: Options) -> list[dict[str, Any]]:
    """Train an encoder and a policy for a few steps on stores with many camera frames."""
    rows = []
    for frames in (BLOCK,) if options.smoke else CAMERA_FRAMES:
        with tempfile.TemporaryDirectory() as folder:
            _write_frames(Path(folder) / "store.zarr", frames)
            rows.append(run_fresh(_train_frames, Path(folder), frames))
    return rows


def _write_frames(path: Path, frames: int) -> None:
    """Write a store of episodes in which a square follows a random walk over a plain background."""
    rng = np.random.default_rng(0)
    place = np.clip(0.5 + np.cumsum(rng.normal(0, 0.02, (frames, 2)), axis=0), 0, None) % 1
    group = zarr.open_group(path, mode="w", attributes={"rate_hz": 10.0})
    for name, values in {"state": place, "action": np.roll(place, -1, axis=0)}.items():
        group.create_array(f"data/{name}", data=values.astype(np.float32), chunks=(BLOCK, 2))
    group.create_array("meta/episode_ends", data=np.arange(125, frames + 1, 125))
    shape = (frames, SIDE, SIDE, 3)
    images = group.create_array("data/img", shape=shape, dtype=np.uint8, chunks=(100, SIDE, SIDE, 3))
    for start in range(0, frames, BLOCK):
        block = np.full((BLOCK, SIDE, SIDE, 3), 230, np.uint8)
        for frame, (x, y) in zip(block, place[start : start + BLOCK], strict=True):
            row, column = int(y * (SIDE - 12)), int(x * (SIDE - 12))
            frame[row : row + 12, column : column + 12] = (30, 60, 220)
        images[start : start + BLOCK] = block


def _train_frames(folder: Path, frames: int) -> dict[str, Any]:
    store, out = folder / "store.zarr", folder / "run"
    config = RunConfig(
        demos=DemoConfig(images=("img",), encoder="keypoints", first_action_from=(0, 1)),
        encoder=KeypointConfig(train=TrainConfig(steps=5, batch_size=64), width=8, anchors=0, known_points=0),
        model=NeuralSDEConfig(network=NetworkConfig(width=64, depth=2)),
        train=TrainConfig(steps=20, batch_size=256),
    )
    peak, stop = {"encoder": 0.0, "policy": 0.0}, threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            stage = "policy" if (out / "encoder" / "codes.safetensors").exists() else "encoder"
            peak[stage] = max(peak[stage], own_memory())

    watcher, before, started = threading.Thread(target=watch), peak_memory(), time.monotonic()
    watcher.start()
    demos, images = load_training_demos(config.demos, store), open_training_images(config.demos, store)
    train_run(demos, config, out, task="none", seed=0, images=images)
    stop.set()
    watcher.join()
    return {
        "frames": frames,
        "frames_mb": frames * SIDE * SIDE * 3 / MB,
        "imports_mb": before,
        "peak_mb": peak_memory(),
        "encoder_own_mb": peak["encoder"],
        "policy_own_mb": peak["policy"],
        "seconds": time.monotonic() - started,
    }


class NetworkSDE(AbstractSDE):
    """One MLP for drift and log diffusion; torchsde calls it through f_and_g."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.net = MLP(2, 4, width=128, depth=4, layer_norm=False, generator=generator)

    def coefficients(self, x: Tensor) -> Coefficients:
        drift, log_diffusion = self.net(x).chunk(2, dim=-1)
        return Coefficients(drift, log_diffusion.exp())

    def f_and_g(self, t: Tensor, y: Tensor) -> Coefficients:
        return self.coefficients(y)


@torch.no_grad()
def measure_sde(options: Options) -> list[dict[str, Any]]:
    """Sample 10,000 paths of 100 Euler steps here and with torchsde, in turns; ratios of neighbouring runs.

    By default torchsde 0.2.6 prepares its Brownian motion for an extra step of almost zero length; giving dt
    to the Brownian motion avoids it, so that row is the fair one.
    """
    import torchsde

    torch.set_num_threads(1)
    steps, rounds = 100, 1 if options.smoke else 9
    sde, x0 = NetworkSDE().eval(), torch.zeros(100 if options.smoke else 10_000, 2)
    ts, generator = torch.linspace(0, 1, steps + 1), torch.Generator().manual_seed(0)

    def sample(**motion: Any) -> Tensor:
        solved: Tensor = torchsde.sdeint(sde, x0, ts, method="euler", dt=1 / steps, **motion)
        return solved

    def sample_with_dt() -> Tensor:
        return sample(bm=torchsde.BrownianInterval(0.0, 1.0, size=x0.shape, dtype=x0.dtype, dt=1 / steps))

    others: dict[str, Callable[[], object]] = {
        "torchsde, Brownian motion told dt": sample_with_dt,
        "torchsde, default": sample,
        "network alone": lambda: [sde.coefficients(x0) for _ in range(steps)],
    }
    rows = []
    for name, other in others.items():
        times = []
        for _ in range(rounds + 1):
            started = time.perf_counter()
            euler_maruyama(sde, x0, dt=1 / steps, steps=steps, generator=generator)
            between = time.perf_counter()
            other()
            times.append((between - started, time.perf_counter() - between))
        ours, theirs = (statistics.median(column) for column in zip(*times[1:], strict=True))
        ratio = statistics.median(b / a for a, b in times[1:])
        rows.append({"against": name, "nsde_policy_s": ours, "other_s": theirs, "ratio": ratio})
    return rows
