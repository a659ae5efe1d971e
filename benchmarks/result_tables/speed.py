"""Tables of latency, training cost, memory and load."""

from collections.abc import Callable
from functools import partial

from result_tables.files import NONE, markdown, read


def latency() -> str:
    """Tabulate eight actions from one observation, every method in turns on one thread."""
    head = ["method", "median, ms", "p99, ms", "first action, ms", "calls", "parameters", "× Neural SDE", "n"]
    lines = []
    for row in sorted(read("latency"), key=lambda row: row["median_ms"]):
        times = [f"{row[key]:.2f}" for key in ("median_ms", "p99_ms", "first_action_ms")]
        costs = [row["calls_per_chunk"], f"{row['parameters']:,}", f"{row['ratio']:.3g}", row["n"]]
        lines.append([row["method"], *times, *costs])
    return markdown(head, lines)


def runtime_latency(*files: str) -> str:
    """Tabulate eight actions of the shipped policies, as ONNX graph and with torch."""
    head = ["contender", "machine", "median, ms", "p99, ms", "first call, ms", "turns", "baseline takes ×"]
    lines = []
    for file in files:
        found = read(file)
        for row in found["rows"]:
            times = [f"{row[key]:.2f}" for key in ("median_ms", "p99_ms", "first_call_median_ms")]
            cells = [row["what"], found["machine"], *times, row["turns"]]
            lines.append([*cells, f"{row['baseline_over_this']:,.0f}"])
    return markdown(head, lines)


def sde_speed() -> str:
    """Tabulate sampling of an SDE with a network, against torchsde."""
    found = read("sde_speed")
    lines = [
        [row["against"], f"{row['nsde_policy_s']:.2f}", f"{row['other_s']:.2f}", f"{row['ratio']:.2f}"]
        for row in found["rows"]
    ]
    return markdown(["against", "nsde_policy, s", "the other, s", "other ÷ nsde_policy"], lines)


def training_cost() -> str:
    """Tabulate time and memory of training with the settings of `auto`."""
    head = ["machine", "dimensions of the state", "recorded steps", "width", "preparation, s", "step, ms"]
    head += ["training steps", "whole training, s", "memory, MB", "GPU memory, MB"]
    lines = []
    for row in read("training_cost"):
        gpu = NONE if row["gpu_memory_mb"] is None else f"{row['gpu_memory_mb']:,.0f}"
        cells = [row["device"], row["size"], f"{row['frames']:,}", row["width"], f"{row['prepare_s']:.1f}"]
        cells += [f"{row['step_ms']:.2f}", f"{row['steps']:,}", f"{row['train_s']:.0f}"]
        lines.append([*cells, f"{row['memory_mb']:,.0f}", gpu])
    return markdown(head, lines)


def frame_memory() -> str:
    """Tabulate memory of training with camera frames by their number."""
    lines = [
        [f"{row[key]:,.0f}" for key in ("frames", "frames_mb", "encoder_own_mb", "policy_own_mb", "peak_mb")]
        for row in read("frame_memory")
    ]
    head = ["frames of 96 × 96", "frames, MB", "encoder stage, MB", "policy stage, MB", "largest process, MB"]
    return markdown(head, lines)


def server() -> str:
    """Tabulate a robot with a deadline, alone and with four greedy clients, and an hour of requests."""
    lines = []
    for row in read("serve_fairness")["results"]:
        for name, title in (("alone", "robot alone"), ("beside", "with greedy clients")):
            own = row[name]
            asked = f"{row['greedy_steps']} actions"
            lines.append([title, asked, f"{own['in_time']} of {own['asked']}", own["p50_ms"], own["p99_ms"]])
    soak = read("serve_soak")
    counts = ["requests", "clients", "requests_per_s", "p50_ms", "p99_ms", "errors", "wrong_answers"]
    counts += ["rss_mb_start", "rss_mb_end"]
    head = ["phase", "greedy clients ask for", "plans in time", "median, ms", "p99, ms"]
    return "\n\n".join(
        [
            markdown(head, lines),
            markdown([name.replace("_", " ") for name in counts], [[soak[name] for name in counts]]),
        ]
    )


def pages() -> str:
    """Tabulate the live page with 0, 1 and 10 viewers, and a report of 4 runs × 200 episodes in a browser."""
    found = read("viewer_load")["viewers"]
    names = {
        "cpu": "CPU of the server, cores",
        "rate_hz": "control periods per second",
        "late_ms": "late by, median ms",
        "late_p99_ms": "late by, p99 ms",
        "fps": "frames per second",
        "worst_fps": "in the worst second",
        "frames_hz": "messages per second to the worst served viewer",
    }
    lines = [
        [title, *(f"{row[name]:.2f}" if name in row else NONE for row in found.values())]
        for name, title in names.items()
    ]
    report = read("report_size")
    keys = ("megabytes", "painted_ms", "loaded_ms", "unpacked_ms", "outside_requests")
    return "\n\n".join(
        [
            markdown(["live page", *(f"{count} viewers" for count in found)], lines),
            markdown([f"report: {key.replace('_', ' ')}" for key in keys], [[report[key] for key in keys]]),
        ]
    )


TABLES: dict[str, Callable[[], str]] = {
    "latency": latency,
    "runtime_latency": partial(runtime_latency, "runtime_latency"),
    "runtime_latency_pixels": partial(
        runtime_latency, "runtime_latency_pixels", "runtime_latency_pixels_x86"
    ),
    "sde_speed": sde_speed,
    "training_cost": training_cost,
    "frame_memory": frame_memory,
    "server": server,
    "pages": pages,
}
