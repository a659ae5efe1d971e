"""Training steps in one and two processes: strong scaling (same batch) and weak scaling (same batch each)."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.eval.latency import device_name
from nsde_policy.run_directory import fingerprint
from nsde_policy.tasks import get_task
from nsde_policy.training.recorder import TrainingProgress
from nsde_policy.training.train import TrainOptions, train_run
from timing.common import ROOT, Options

METHODS = {"neural_sde": (1024, 5), "diffusion": (32, 2)}
"""Methods with a small and a large network: batch of one process, and steps between two records."""
RECORDS, TURNS = 10, 2


def measure_ranks(options: Options) -> list[dict[str, Any]]:
    """Train by turns without torchrun, and with one and two processes of it; the first record is left out."""
    cases = [
        (0, 1),
        (0, 2),
        (1, 1),
        (2, 1),
        (2, 2),
    ]  # processes of torchrun, and batches of one process together
    if options.device != "cpu":
        import torch

        cases = [case for case in cases if case[0] <= torch.cuda.device_count()]
    found: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for _ in range(1 if options.smoke else TURNS):
        for method in [*METHODS][: 1 if options.smoke else None]:
            for ranks, times in cases:
                found.setdefault((method, ranks, times), []).append(_train(options, method, ranks, times))
    return [_summarize(options, found, *case) for case in found]


def _train(options: Options, method: str, ranks: int, times: int) -> dict[str, Any]:
    """Train in new processes, with one core for each."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    batch, every = METHODS[method]
    every = 1 if options.smoke else every * (1 if options.device == "cpu" else 100)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "benchmarks")}
    with tempfile.TemporaryDirectory() as folder:
        work = [str(Path(__file__)), folder, method, str(batch * times), str(every), options.device]
        subprocess.run(
            [sys.executable, *launcher, *work], check=True, env=environment, stdout=subprocess.DEVNULL
        )
        found: dict[str, Any] = json.loads((Path(folder) / "times.json").read_text())
    return found


def _summarize(
    options: Options,
    found: dict[tuple[str, int, int], list[dict[str, Any]]],
    method: str,
    ranks: int,
    times: int,
) -> dict[str, Any]:
    """Return the medians over the turns, and the efficiency against a process without torchrun."""

    def median(key: tuple[str, int, int], name: str) -> float:
        return float(np.median([run[name] for run in found[key]]))

    def predict() -> float:
        """Return fixed + work / 2 + exchange, from what the other three cases took."""
        once, twice, each = (median((method, *case), "cpu_ms") for case in ((0, 1), (0, 2), (2, 2)))
        return (2 * once - twice) + (twice - once) / 2 + (each - once)

    here, alone = (method, ranks, times), (method, 0, 1)
    share = times / max(ranks, 1)  # of the work of a process alone
    return {
        "device": device_name(options.device),
        "method": method,
        "processes": f"{ranks} of torchrun" if ranks else "1",
        "batch": times * METHODS[method][0],
        "step_ms": median(here, "step_ms"),
        "cpu_ms": median(here, "cpu_ms"),
        "efficiency": share * median(alone, "step_ms") / median(here, "step_ms"),
        "cpu_efficiency": share * median(alone, "cpu_ms") / median(here, "cpu_ms"),
        "cpu_ms_predicted": predict() if (ranks, times) == (2, 1) else None,
        "weights": found[here][0]["weights"],
    }


def work(folder: Path, method: str, batch: int, every: int, device: str) -> None:
    """Train on Push-T; the process that writes the run also writes the time between its records."""
    preset = get_task("pusht").preset("fast", method)
    train = replace(preset.train, steps=RECORDS * every, log_every=every, batch_size=batch)
    config = replace(
        preset,
        train=train,
        demos=replace(preset.demos, align_ends=False),
        selection=replace(preset.selection, select="none"),
    )
    moments: list[tuple[float, float]] = []

    def note(progress: TrainingProgress) -> None:
        moments.append((progress.seconds, time.process_time()))

    options = TrainOptions(device=device, save_every_s=1e9)
    run = train_run(None, config, folder / "run", task="pusht", seed=0, monitor=note, options=options)
    if moments:
        wall, cpu = 1e3 * np.median(np.diff(moments, axis=0), axis=0) / every
        times = {"step_ms": wall, "cpu_ms": cpu, "weights": fingerprint(run.read_weights())[:8]}
        (folder / "times.json").write_text(json.dumps(times))


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
