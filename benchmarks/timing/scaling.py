"""A model of training on many GPUs: step(n) = fixed + work / n + exchange(n), with the whole batch kept.

Fixed is what a step takes however small its batch; work is divided among the GPUs. Both come from the steps
of docs/results on one H200. `ranks` checks the same model on this machine, where everything is measured.
"""

import math
from typing import Any

import numpy as np
from result_tables.files import read

from timing.common import Options

IN_MACHINE, BETWEEN = (360e9, 10e-6), (45e9, 25e-6)
"""Assumed: bytes per second and seconds per exchange, over NVLink and over 400 Gbit/s for each GPU."""
GPUS_OF_MACHINE, DOLLARS_PER_GPU_HOUR = 8, 4.0
ENCODER_MS, ENCODER_STEPS, ENCODER_WEIGHTS = 57e3 / 2430, 2430, 331_180
"""Keypoint encoder of Push-T: docs/results/pixels.md, encoders/keypoints/config.py."""


def measure_scaling(options: Options | None) -> list[dict[str, Any]]:
    """Predict steps, times and costs of two workloads on one GPU, one machine and 64 machines."""
    fixed, work = fit_widths()
    encoder_work = ENCODER_MS - fixed  # assumed: what does not shrink is as long as in a small policy
    rows = []
    for name, steps, weights, work_ms in (
        ("state policy, width 256", 40_000, 5.2 * 256**2, work * 256**2),
        ("state policy, width 1024", 40_000, 5.2 * 1024**2, work * 1024**2),
        ("keypoint encoder", ENCODER_STEPS, ENCODER_WEIGHTS, encoder_work),
    ):
        alone = fixed + work_ms
        for gpus in (1, 8, 64 * GPUS_OF_MACHINE):
            exchange = 1e3 * exchange_s(4 * weights, gpus)
            step, weak = fixed + work_ms / gpus + exchange, alone + exchange
            hours = steps * step / 3.6e6
            rows.append(
                {
                    "workload": name,
                    "GPUs": gpus,
                    "step, ms": step,
                    "training, s": 3600 * hours,
                    "cost, $": gpus * hours * DOLLARS_PER_GPU_HOUR,
                    "efficiency, same batch": alone / (gpus * step),
                    "efficiency, same batch per GPU": alone / weak,
                }
            )
    return rows


def fit_widths() -> tuple[float, float]:
    """Return the fixed milliseconds of a step on one H200, and those for each squared unit of width."""
    rows = [row for row in read("training_cost") if row["device"] == "NVIDIA H200"]
    work, fixed = np.polyfit([row["width"] ** 2 for row in rows], [row["step_ms"] for row in rows], 1)
    return float(fixed), float(work)


def exchange_s(size: float, gpus: int) -> float:
    """Return the seconds of one sum over all gradients: a ring in each machine, then one between machines."""
    inside = min(gpus, GPUS_OF_MACHINE)
    total = 0.0
    for members, (rate, latency) in ((inside, IN_MACHINE), (gpus // inside, BETWEEN)):
        total += 2 * (members - 1) / members * size / rate + math.log2(members) * latency
    return total
