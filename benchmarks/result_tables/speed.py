"""Tables of latency, training cost, memory and load."""

from collections.abc import Callable
from functools import partial

from nsde_policy.eval.statistics import proportion
from result_tables.files import number, read, tabulate


def latency() -> str:
    """Tabulate eight actions from one observation, every method in turns on one thread."""
    columns = {
        "method": "method",
        "median, ms": number("median_ms", 2),
        "p99, ms": number("p99_ms", 2),
        "calls": "calls_per_chunk",
        "parameters": number("parameters"),
        "÷ Neural SDE": lambda row: f"{row['ratio']:.3g}",
    }
    return tabulate(sorted(read("latency"), key=lambda row: row["median_ms"]), columns)


def runtime_latency(file: str) -> str:
    """Tabulate eight actions of a shipped policy, as ONNX graph and with torch."""
    columns = {
        "contender": "what",
        "median, ms": number("median_ms", 2),
        "p99, ms": number("p99_ms", 2),
        "Diffusion Policy takes ×": number("baseline_over_this"),
    }
    return tabulate(read(file)["rows"], columns)


def training_cost() -> str:
    """Tabulate time and memory of training with the settings of `auto`."""
    columns = {
        "machine": "device",
        "dimensions of the state": "size",
        "recorded steps": number("frames"),
        "width": "width",
        "preparation, s": number("prepare_s", 1),
        "step, ms": number("step_ms", 2),
        "whole training, s": number("train_s"),
        "memory, MB": number("memory_mb"),
        "GPU memory, MB": number("gpu_memory_mb"),
    }
    return tabulate(read("training_cost"), columns)


def short_training() -> str:
    """Tabulate short trainings on Push-T: seconds from the start of the program, and scores."""
    columns = {
        "machine": "device",
        "demonstrations": "demos",
        "steps": number("steps"),
        "from start to end, s": number("seconds", 1),
        "strict success": lambda row: proportion(row["successes"], row["episodes"]),
    }
    return tabulate(read("short_training"), columns)


def robots() -> str:
    """Tabulate how many robots one server holds."""
    columns = {
        "device": "device",
        "robots": "robots",
        "plans": number("plans"),
        "in time": lambda row: f"{row['in_time']:.1%}",
        "median, ms": number("p50_ms"),
        "p99, ms": number("p99_ms"),
    }
    return tabulate(sorted(read("robots"), key=lambda row: (row["device"], row["robots"])), columns)


TABLES: dict[str, Callable[[], str]] = {
    "latency": latency,
    "runtime_latency": partial(runtime_latency, "runtime_latency"),
    "runtime_latency_pixels": partial(runtime_latency, "runtime_latency_pixels_x86"),
    "training_cost": training_cost,
    "short_training": short_training,
    "robots": robots,
}
