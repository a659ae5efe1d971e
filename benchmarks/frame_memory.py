"""Measure the memory of training with camera frames by the number of recorded frames.

    python benchmarks/frame_memory.py --out benchmarks/results/frame_memory.json

Writes stores of 25,000 and of 250,000 frames of 96 × 96 pixels, about Push-T's and ten times as many, into a
temporary folder (`--folder`), and trains each in a process of its own with a few steps: every frame is
decoded once and encoded once, as in a real training. Memory is the largest resident size of the process, and
for each stage that of its own pages (without files that are mapped into memory); the page cache is not part
of either. The encoder stage also needs disk: `frames_mb` of resized frames in a temporary file.
"""

import argparse
import json
import multiprocessing
import resource
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

FRAMES = (25_000, 250_000)
SIDE, EPISODE, BLOCK = 96, 125, 1_000
MB = 1e6


def write_frames(path: Path, frames: int) -> None:
    """Write a store of episodes in which a square follows a random walk over a plain background."""
    import zarr

    rng = np.random.default_rng(0)
    place = np.clip(0.5 + np.cumsum(rng.normal(0, 0.02, (frames, 2)), axis=0), 0, None) % 1
    group = zarr.open_group(path, mode="w", attributes={"rate_hz": 10.0})
    for name, values in {"state": place, "action": np.roll(place, -1, axis=0)}.items():
        group.create_array(f"data/{name}", data=values.astype(np.float32), chunks=(BLOCK, 2))
    group.create_array("meta/episode_ends", data=np.arange(EPISODE, frames + 1, EPISODE))
    shape = (frames, SIDE, SIDE, 3)
    images = group.create_array("data/img", shape=shape, dtype=np.uint8, chunks=(100, SIDE, SIDE, 3))
    for start in range(0, frames, BLOCK):
        block = np.full((BLOCK, SIDE, SIDE, 3), 230, np.uint8)
        for frame, (x, y) in zip(block, place[start : start + BLOCK], strict=True):
            row, column = int(y * (SIDE - 12)), int(x * (SIDE - 12))
            frame[row : row + 12, column : column + 12] = (30, 60, 220)
        images[start : start + BLOCK] = block


def watch_memory(out: Path, peak: dict[str, float], stop: threading.Event) -> None:
    """Keep the largest size of the process's own pages, MB, in each stage of the training into `out`."""
    while not stop.wait(0.05):
        stage = "policy" if (out / "encoder" / "codes.safetensors").exists() else "encoder"
        status = Path("/proc/self/status").read_text()
        own = int(status.partition("RssAnon:")[2].split()[0]) * 1024 / MB
        peak[stage] = max(peak.get(stage, 0.0), own)


def measure(store: Path, out: Path, frames: int) -> dict[str, float]:
    """Train a few steps and return time and memory."""
    from nsde_policy.config import NetworkConfig, TrainConfig
    from nsde_policy.encoders.keypoints.config import KeypointConfig
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
    from nsde_policy.run_config import DemoConfig, RunConfig
    from nsde_policy.training.dataset import load_training_demos
    from nsde_policy.training.encoder import open_training_images
    from nsde_policy.training.run import train_run

    config = RunConfig(
        demos=DemoConfig(images=("img",), encoder="keypoints", first_action_from=(0, 1)),
        encoder=KeypointConfig(train=TrainConfig(steps=5, batch_size=64), width=8, anchors=0, known_points=0),
        model=NeuralSDEConfig(network=NetworkConfig(width=64, depth=2)),
        train=TrainConfig(steps=20, batch_size=256),
    )
    peak: dict[str, float] = {}
    stop = threading.Event()
    watcher = threading.Thread(target=watch_memory, args=(out, peak, stop))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, time.monotonic()
    watcher.start()
    demos, images = load_training_demos(config.demos, store), open_training_images(config.demos, store)
    train_run(demos, config, out, task="none", seed=0, images=images)
    stop.set()
    watcher.join()
    return {
        "frames": frames,
        "frames_mb": frames * SIDE * SIDE * 3 / MB,
        "imports_mb": before / MB,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB,
        "encoder_own_mb": peak["encoder"],
        "policy_own_mb": peak["policy"],
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, nargs="+", default=FRAMES)
    parser.add_argument("--folder", type=Path, help="where the stores are made; default: that of tempfile")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the rows to this file")
    args = parser.parse_args()
    rows, context = [], multiprocessing.get_context("spawn")
    for frames in args.frames:
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = Path(name)
            needed, free = 1.2 * frames * SIDE * SIDE * 3, shutil.disk_usage(folder).free
            if free < needed:
                parser.error(
                    f"{folder} has {free / 1e9:.1f} GB free, expected {needed / 1e9:.1f}: set --folder"
                )
            write_frames(folder / "store.zarr", frames)
            with context.Pool(1) as pool:  # a fresh process: peak memory never falls
                row = pool.apply(measure, (folder / "store.zarr", folder / "run", frames))
        rows.append(row)
        print(", ".join(f"{key} {value:,.0f}" for key, value in row.items()), flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
