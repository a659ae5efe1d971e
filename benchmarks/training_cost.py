"""Measure training time and memory by the size of the state and the number of recorded steps.

    python benchmarks/training_cost.py --out benchmarks/results/training_cost.json [--device cuda]
    python benchmarks/training_cost.py --plot RESULTS.json docs/images/training_cost.png

Each point is trained in a process of its own with the settings that the preset `auto` chooses, on random
walks of a position-controlled robot (30 Hz, 500 steps per episode). Preparation covers everything before the
first optimiser step: statistics, ranges, calibration, pairs of states. Memory is the largest resident size
above that of the imported packages and the demonstrations themselves; on a GPU, also what torch allocates.
A CPU uses one thread.
"""

import argparse
import json
import math
import multiprocessing
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

SIZES = (7, 26, 100, 400)
FRAMES = (1_000, 10_000, 100_000, 1_000_000)
BASE_SIZE, BASE_FRAMES = 26, 100_000
EPISODE = 500
MB = 1e6
CURVES = (
    (0, "step_ms", "o-", "step, ms"),
    (0, "prepare_s", "o:", "preparation, s"),
    (1, "memory_mb", "o-", "main memory"),
    (1, "gpu_memory_mb", "o:", "its memory"),
)
"""Row of the figure, value, line and title of each curve."""


def make_demos(size: int, frames: int):
    """Make random walks; a third of the state are commands, each the next position of one column."""
    from nsde_policy.data import Demonstrations

    act_dim = max(size // 3, 1)
    rng = np.random.default_rng(0)
    steps = rng.normal(0, 0.01, (frames, size - act_dim)).astype(np.float32)
    obs = np.cumsum(steps, axis=0, dtype=np.float32)
    act = np.roll(obs, -1, axis=0)[:, :act_dim].copy()
    ends = np.arange(EPISODE, frames + 1, EPISODE)
    return Demonstrations(obs, act, ends, rate_hz=30.0)


def peak_memory() -> int:
    """Return the largest resident size of this process so far, bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(point):
    """Train a few steps and return time and memory."""
    size, frames, device, timed = point
    import torch

    from nsde_policy.data.statistics import measure_statistics
    from nsde_policy.eval.latency import device_name
    from nsde_policy.tasks import get_task
    from nsde_policy.training.run import train_run

    torch.set_num_threads(1)
    torch.zeros(1, device=device)
    demos = make_demos(size, frames)
    held, started, ticks = peak_memory(), time.perf_counter(), []
    statistics = measure_statistics(demos)
    config = get_task("none").preset("auto", statistics=statistics)
    full, every = config.train.steps, timed // 2
    config = replace(config, train=replace(config.train, steps=2 * every, log_every=every))

    def note(progress):
        ticks.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        train_run(demos, config, Path(folder) / "run", task="none", seed=0, device=device, monitor=note)
    step_s = (ticks[1] - ticks[0]) / every
    return {
        "size": size,
        "frames": frames,
        "width": config.model.network.width,
        "steps": full,
        "prepare_s": ticks[0] - started - step_s * every,
        "step_ms": 1e3 * step_s,
        "train_s": step_s * full,
        "memory_mb": (peak_memory() - held) / MB,
        "gpu_memory_mb": torch.cuda.max_memory_allocated() / MB if device == "cuda" else None,
        "device": device_name(device),
        "torch": torch.__version__,
    }


def plot(rows, path: Path) -> None:
    """Draw time and memory over the size of the state and over the recorded steps."""
    from nsde_policy.eval.render.plotting import make_figure, plot_style, pyplot

    devices = list(dict.fromkeys(row["device"] for row in rows))
    with plot_style():
        figure, axes = make_figure(2, 2, (7.2, 4.6))
        for column, (axis_name, label) in enumerate(
            (("size", "dimensions of the state"), ("frames", "recorded steps"))
        ):
            for device, colour in zip(devices, ("#0072b2", "#d55e00"), strict=False):
                base = ("frames", BASE_FRAMES) if axis_name == "size" else ("size", BASE_SIZE)
                chosen = sorted(
                    (row for row in rows if row["device"] == device and row[base[0]] == base[1]),
                    key=lambda row: row[axis_name],
                )
                for row, value, line, title in CURVES:
                    if not any(each[value] is None for each in chosen):
                        axes[row, column].plot(
                            [each[axis_name] for each in chosen],
                            [each[value] for each in chosen],
                            line,
                            ms=3,
                            color=colour,
                            label=f"{device}: {title}",
                        )
            for row, unit in enumerate(("", "MB")):
                axes[row, column].set(xscale="log", yscale="log", ylabel=unit)
            axes[1, column].set_xlabel(label)
        axes[0, 0].set_title(f"time, {BASE_FRAMES:,} recorded steps", loc="left")
        axes[0, 1].set_title(f"time, {BASE_SIZE} dimensions", loc="left")
        axes[1, 0].set_title("memory beyond the demonstrations", loc="left")
        axes[0, 0].legend(frameon=False, fontsize=6.5, loc="center left", bbox_to_anchor=(0.05, 0.27))
        axes[1, 0].legend(frameon=False, fontsize=6.5, loc="upper left")
        figure.savefig(path, dpi=140)
        pyplot().close(figure)


def slope(rows, axis_name: str, value: str) -> float:
    """Return the exponent of the growth between the two largest points."""
    first, last = sorted(rows, key=lambda row: row[axis_name])[-2:]
    return math.log(last[value] / first[value]) / math.log(last[axis_name] / first[axis_name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--timed-steps", type=int, default=600)
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("JSON", "PNG"))
    args = parser.parse_args()
    if args.plot:
        plot(json.loads(args.plot[0].read_text()), args.plot[1])
        return
    points = dict.fromkeys(
        [(size, BASE_FRAMES) for size in SIZES] + [(BASE_SIZE, frames) for frames in FRAMES]
    )
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    context = multiprocessing.get_context("spawn")
    for size, frames in points:
        with context.Pool(1) as pool:  # a fresh process: peak memory never falls
            row = pool.apply(measure, ((size, frames, args.device, args.timed_steps),))
        rows = [r for r in rows if (r["size"], r["frames"], r["device"]) != (size, frames, row["device"])] + [
            row
        ]
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(
            ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
            flush=True,
        )
    own = [row for row in rows if row["device"] == rows[-1]["device"]]
    by_frames, by_size = (
        [r for r in own if r[k] == b] for k, b in (("size", BASE_SIZE), ("frames", BASE_FRAMES))
    )
    for value in ("prepare_s", "step_ms", "memory_mb"):
        print(
            f"{value} grows as frames^{slope(by_frames, 'frames', value):.2f}, "
            f"size^{slope(by_size, 'size', value):.2f}"
        )


if __name__ == "__main__":
    main()
