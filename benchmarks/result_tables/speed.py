"""Tables of latency, training cost, memory and load."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from timing.scaling import GPUS_OF_MACHINE, MANY, measure_scaling, predict_fleet, predict_step

from nsde_policy.eval.statistics import proportion
from result_tables.files import NONE, number, read, tabulate


def latency() -> str:
    """Tabulate eight actions from one observation, every method in turns on one thread."""
    columns = {
        "method": "method",
        "median, ms": number("median_ms", 2),
        "p99, ms": number("p99_ms", 2),
        "first action, ms": number("first_action_ms", 2),
        "calls": "calls_per_chunk",
        "parameters": number("parameters"),
        "× Neural SDE": lambda row: f"{row['ratio']:.3g}",
        "n": "n",
    }
    return tabulate(sorted(read("latency"), key=lambda row: row["median_ms"]), columns)


def runtime_latency(*files: str) -> str:
    """Tabulate eight actions of the shipped policies, as ONNX graph and with torch."""
    found = [read(file) for file in files]
    rows = [{**row, "machine": each["machine"]} for each in found for row in each["rows"]]
    columns = {
        "contender": "what",
        "machine": "machine",
        "median, ms": number("median_ms", 2),
        "p99, ms": number("p99_ms", 2),
        "first call, ms": number("first_call_median_ms", 2),
        "turns": "turns",
        "baseline takes ×": number("baseline_over_this"),
    }
    return tabulate([row for row in rows if row["what"] != "numpy"], columns)  # not measured any more


def training_cost() -> str:
    """Tabulate time and memory of training with the settings of `auto`."""
    columns = {
        "machine": "device",
        "dimensions of the state": "size",
        "recorded steps": number("frames"),
        "width": "width",
        "preparation, s": number("prepare_s", 1),
        "step, ms": number("step_ms", 2),
        "training steps": number("steps"),
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
        "training seed": "seed",
        "steps": number("steps"),
        "steps of the dynamics model": number("dynamics_steps"),
        "from start to end, s": number("seconds", 1),
        "of these outside the steps, s": number("start_s", 1),
        "mean max reward": number("reward", 3),
        "strict success": lambda row: proportion(row["successes"], row["episodes"]),
    }
    return tabulate(read("short_training"), columns)


def server() -> str:
    """Tabulate an hour of requests of eight robots at 10 Hz, sent without a pause."""
    counts = ["requests", "clients", "requests_per_s", "p50_ms", "p99_ms", "errors", "wrong_answers"]
    counts += ["rss_mb_start", "rss_mb_end"]
    return tabulate([read("serve_soak")], {name.replace("_", " "): name for name in counts})


def ranks() -> str:
    """Tabulate training steps in one and two processes, in processor time."""
    columns = {
        "machine": "device",
        "method": "method",
        "processes": "processes",
        "batch": "batch",
        "step, ms of a processor": number("cpu_ms"),
        "predicted": number("cpu_ms_predicted"),
        "efficiency": lambda row: f"{row['cpu_efficiency']:.0%}",
    }
    return tabulate(read("ranks"), columns)


def fleet() -> str:
    """Tabulate episodes on two nodes of Ray, relative to two processes, by turn."""
    columns = {"wall-clock time": number("wall_s_ratio", 2), "processor time": number("cpu_s_ratio", 2)}
    return tabulate(read("fleet"), columns)


def robots() -> str:
    """Tabulate how many robots one server holds."""
    columns = {
        "device": "device",
        "robots": "robots",
        "plans": number("plans"),
        "in time": lambda row: f"{row['in_time']:.1%}",
        "median, ms": number("p50_ms"),
        "p99, ms": number("p99_ms"),
        "plans per batch": number("rows_per_batch", 1),
    }
    return tabulate(sorted(read("robots"), key=lambda row: (row["device"], row["robots"])), columns)


def search() -> str:
    """Tabulate a search, and its trials by a schedule that knows them beforehand."""
    columns = {
        "device": "device",
        "trainings": "trainings",
        "episodes": number("rollouts"),
        "search, s": number("search_s"),
        "schedule, s": number("schedule_s"),
        "ratio": number("ratio", 2),
        "return before": "before",
        "return after": "tuned",
    }
    return tabulate(read("search"), columns)


def scaling() -> str:
    """Tabulate predicted steps, times and costs of training on several H200."""
    columns = {
        "training": "workload",
        "GPUs": "GPUs",
        "batch": number("batch"),
        "step, ms": number("step, ms", 2),
        "same number of examples, s": number("training, s", 1),
        "cost, $": number("cost, $", 2),
        "efficiency": lambda row: f"{row['efficiency']:.0%}",
    }
    return tabulate(measure_scaling(None), columns)


def shares() -> str:
    """Tabulate training steps on shares of a batch; the model knows the largest and the smallest ones."""
    rows = read("shares")
    ends = [choose(row["share"] for row in rows) for choose in (min, max)]

    def predict(row: Mapping[str, Any]) -> str:
        return f"{predict_step(row['workload'], row['share']):.2f}"

    columns = {
        "training": "workload",
        "weights": number("weights"),
        "batch": number("batch"),
        "step, ms": number("step_ms", 2),
        "predicted": lambda row: predict(row) if row["share"] not in ends else NONE,
        "GPU memory, MB": number("gpu_memory_mb"),
    }
    return tabulate(rows, columns)


def together() -> str:
    """Tabulate small trainings side by side on one GPU, and 1,000 of them on several."""

    def predict(gpus: int) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: "{:.1f} ({:.2f} $)".format(*predict_fleet(row["runs"], gpus))

    columns = {
        "trainings at once": "runs",
        "time, s": number("seconds", 1),
        "gain": number("gain", 1),
        "1,000 on 1 GPU, min": predict(1),
        f"on {GPUS_OF_MACHINE} GPUs": predict(GPUS_OF_MACHINE),
        f"on {MANY} GPUs": predict(MANY),
    }
    return tabulate(read("together"), columns)


TABLES: dict[str, Callable[[], str]] = {
    "latency": latency,
    "runtime_latency": partial(runtime_latency, "runtime_latency"),
    "runtime_latency_pixels": partial(
        runtime_latency, "runtime_latency_pixels", "runtime_latency_pixels_x86"
    ),
    "training_cost": training_cost,
    "short_training": short_training,
    "ranks": ranks,
    "fleet": fleet,
    "robots": robots,
    "search": search,
    "shares": shares,
    "together": together,
    "scaling": scaling,
    "server": server,
}
