"""Trainings of a small policy side by side on one device: how much longer each takes, and what is gained."""

import multiprocessing
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

from gpu_sharing import share_gpu

from nsde_policy.config import SelectionConfig
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.workers import WorkerPool
from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import get_task
from nsde_policy.training.train import TrainOptions, train_run
from timing.common import Options

TASK, STEPS, COUNTS = "avoiding_varied", 10_000, (1, 2, 4, 8, 16)


def measure_together(options: Options) -> list[dict[str, Any]]:
    """Train several runs at once, all from the same moment; the time to start the processes is left out."""
    steps, counts = (3, (1, 2)) if options.smoke else (STEPS, COUNTS if options.device == "cuda" else (1, 2))
    config = replace(get_task(TASK).preset("fast"), selection=SelectionConfig())
    config = config.replace_parts(train={"steps": steps})
    rows = list[dict[str, Any]]()
    with share_gpu() if options.device == "cuda" else nullcontext(), multiprocessing.Manager() as manager:
        for count in counts:
            with tempfile.TemporaryDirectory() as folder, WorkerPool(count) as pool:
                start = manager.Barrier(count)
                runs = [Path(folder) / str(i) for i in range(count)]
                jobs = [pool.submit(_train, config, options.device, run, start) for run in runs]
                begins, ends = zip(*(job.result() for job in jobs), strict=True)
            seconds = max(ends) - min(begins)
            alone = rows[0]["seconds"] if rows else seconds
            times = {"seconds": seconds, "gain": count * alone / seconds, "efficiency": alone / seconds}
            rows.append({"device": device_name(options.device), "steps": steps, "runs": count, **times})
    return rows


def _train(config: RunConfig, device: str, run: Path, start: Barrier) -> tuple[float, float]:
    """Train a short run first, so that the device is ready; return when the long one began and ended."""
    training = TrainOptions(device)
    train_run(
        None, config.replace_parts(train={"steps": 3}), run / "first", task=TASK, seed=0, options=training
    )
    start.wait()
    began = time.monotonic()
    train_run(None, config, run / "timed", task=TASK, seed=0, options=training)
    return began, time.monotonic()
