"""A model of training on many GPUs: step(n) = fixed + work × share of the batch + exchange(n).

Fixed and work come from `shares`, a gradient's exchange from assumptions. `ranks` checks the same model on
processors, where everything is measured.
"""

import math
from typing import Any

from result_tables.files import read

from timing.common import Options

IN_MACHINE, BETWEEN = (360e9, 10e-6), (45e9, 25e-6)
"""Assumed: bytes per second and seconds per exchange, over NVLink and over 400 Gbit/s for each GPU."""
GPUS_OF_MACHINE, DOLLARS_PER_GPU_HOUR = 8, 4.0
MANY = 64 * GPUS_OF_MACHINE
SETUPS = (
    (1, 1),
    (GPUS_OF_MACHINE, 1),
    (GPUS_OF_MACHINE, GPUS_OF_MACHINE),
    (MANY, GPUS_OF_MACHINE),
    (MANY, MANY),
)
"""GPUs, and how many times the usual batch they share."""
TRAININGS = 1000
"""Trainings of a fleet."""


def measure_scaling(options: Options | None) -> list[dict[str, Any]]:
    """Predict steps, times and costs of as many examples as usual on one GPU, one machine and 64 machines."""
    rows = []
    for whole in (row for row in read("shares") if row["share"] == 1):
        for gpus, times in SETUPS:
            exchange = 1e3 * exchange_s(4 * whole["weights"], gpus)
            step = predict_step(whole["workload"], times / gpus) + exchange
            hours = whole["training_steps"] / times * step / 3.6e6
            rows.append(
                {
                    "workload": whole["workload"],
                    "GPUs": gpus,
                    "batch": times * whole["batch"],
                    "step, ms": step,
                    "training, s": 3600 * hours,
                    "cost, $": gpus * hours * DOLLARS_PER_GPU_HOUR,
                    "efficiency": times / gpus * predict_step(whole["workload"], 1) / step,
                }
            )
    return rows


def predict_step(workload: str, share: float) -> float:
    """Return the milliseconds of a step on a share of the batch, without an exchange.

    The line goes through the whole batch and the smallest share that were measured.
    """
    measured = {row["share"]: row["step_ms"] for row in read("shares") if row["workload"] == workload}
    least = min(measured)
    work = (measured[1] - measured[least]) / (1 - least)
    return float(measured[1] + work * (share - 1))


def exchange_s(size: float, gpus: int) -> float:
    """Return the seconds of one sum over all gradients: a ring in each machine, then one between machines."""
    inside = min(gpus, GPUS_OF_MACHINE)
    total = 0.0
    for members, (rate, latency) in ((inside, IN_MACHINE), (gpus // inside, BETWEEN)):
        total += 2 * (members - 1) / members * size / rate + math.log2(members) * latency
    return total


def predict_fleet(most: int, gpus: int) -> tuple[float, float]:
    """Return minutes and dollars of many small trainings, up to `most` of them side by side on each GPU."""
    seconds = {row["runs"]: row["seconds"] for row in read("together")}
    # few trainings are left for each of many GPUs
    at_once = min(most, next(runs for runs in sorted(seconds) if runs * gpus >= min(TRAININGS, most * gpus)))
    minutes = math.ceil(TRAININGS / (at_once * gpus)) * seconds[at_once] / 60
    return minutes, gpus * minutes / 60 * DOLLARS_PER_GPU_HOUR
