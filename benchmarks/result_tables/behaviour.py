"""Tables of the real robot's recordings, the 2-D bifurcation, the control loop and the method itself."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from result_tables.files import NONE, cell, markdown, read, tabulate

HORIZONS = (1, 4, 8, 16)
"""Control periods ahead whose errors are shown."""
LEVELS = ("50 %", "68 %", "95 %")


def _pick(found: Mapping[str, Any] | None, index: int, decimals: int = 3) -> str:
    """Format one entry of an estimate of several numbers."""
    if found is None or len(found["value"]) <= index:
        return NONE
    return cell({key: found[key][index] for key in ("value", "low", "high")}, decimals)


def g1_policy() -> str:
    """Tabulate error of actions by horizon and coverage of σ, 5,000 steps of the preset `auto`."""
    found = read("g1_eval")["parts"]["all"]
    names = {"sample": "one sampled plan", "repeat": "repeat the last action"}
    errors = [
        [title, *(_pick(found["error_in_std"][name], h - 1) for h in HORIZONS)]
        for name, title in names.items()
    ]
    covered = [
        [title, *(_pick(found["coverage"][name], i, 2) for i in range(3))]
        for name, title in (("actions", "intervals of σ"), ("plans", "sampled plans"))
    ]
    ahead = [f"{h} period{'s' * (h > 1)} ahead" for h in HORIZONS]
    return "\n\n".join(
        [
            markdown(["RMS error of actions, in their standard deviations", *ahead], errors),
            markdown(["recorded actions inside", *LEVELS], covered),
        ]
    )


def g1_likelihood() -> str:
    """Tabulate log-likelihoods of held-out episodes on three splits, nats per control period."""
    head = ["method", "split", "log p(action)", "less than the first calibrated row", "log p(state)"]
    lines = []
    for name, seed, row in _list_g1_rows():
        difference = row.get("log_prob_action_difference")
        if difference is not None:
            value, low, high = (-difference[key] for key in ("value", "high", "low"))
            difference = {"value": value, "low": low, "high": high}
        cells = [cell(each, 1) for each in (row["log_prob_action"], difference, row.get("log_prob_state"))]
        lines.append([f"{name}{' (Gaussian)' if row['gaussian'] else ''}", seed, *cells])
    return markdown(head, lines)


def g1_errors() -> str:
    """Tabulate RMS errors of actions on three splits, in their standard deviations."""
    kinds = {"error": "one plan", "error_mean_plan": "mean of 39 plans"}
    head = ["method", "split", *(f"{title}, {h} ahead" for title in kinds.values() for h in HORIZONS)]
    lines = []
    for name, seed, row in _list_g1_rows():
        if "error" in row:
            lines.append([name, seed, *(_pick(row.get(kind), h - 1) for kind in kinds for h in HORIZONS)])
        if name == "Neural SDE, calibrated":
            repeated = [_pick(row["error_repeat"], h - 1) for h in HORIZONS]
            lines.append(["repeat the last action", seed, *repeated, *[NONE] * len(HORIZONS)])
    return markdown(head, lines)


def g1_coverage() -> str:
    """Tabulate the share of recorded values inside intervals of σ on three splits."""
    parts = ("action", "observation")
    head = ["method", "split", *(f"{level} of {what}s" for what in parts for level in LEVELS)]
    lines = [
        [name, seed, *(_pick(row[f"coverage_{what}"], i, 2) for what in parts for i in range(3))]
        for name, seed, row in _list_g1_rows()
        if "coverage_action" in row
    ]
    return markdown(head, lines)


def _list_g1_rows() -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield name, split and figures of every method; the first splits are reported, 0 is for choices."""
    for seed in (5, 29, 0):
        for name, row in read(f"g1_offline_{seed}")["rows"].items():
            title = name.replace("step_inputs=1,history_noise=shared", "step inputs")
            yield (
                title.replace("neural_sde", "Neural SDE").replace(":", ", ").replace(",steps", ", steps"),
                seed,
                row,
            )


def bifurcation() -> str:
    """Tabulate branches, fork and distance of generated paths; in brackets the extremes of three seeds."""
    head = ["points", "method", "upper %", "lower %", "off-branch %", "fork error %", "energy distance"]
    lines = []
    for row in read("bifurcation")["summary"]:
        shares = [cell(row[key], 1, 100) for key in ("upper", "lower", "off_branch")]
        rest = [cell(row["fork_error"], 2, 100), cell(row["energy_distance"], 4), f"{row['network_calls']:,}"]
        bars = "met" if row["bars_met"] else NONE
        lines.append([f"{100 * row['density']}", row["label"], *shares, *rest, bars])
    return markdown([*head, "network calls", "bars"], lines)


def control_delays() -> str:
    """Tabulate Push-T with planning that takes 0 to 4 control periods."""
    lines = [
        [
            f"{10 * row['delay_s']:g}",
            "yes" if row["ahead"] else "no",
            cell(row["reward"]),
            cell(row["success"]),
        ]
        for row in read("control_loop")["delays"]
    ]
    return markdown(["planning takes, periods", "plans ahead", "mean max reward", "strict success"], lines)


def control_rates() -> str:
    """Tabulate Push-T at several control rates."""
    lines = [
        [f"{row['rate_hz']:g}", "yes" if row["ahead"] else "no", cell(row["reward"]), cell(row["success"])]
        for row in read("control_loop")["rates"]
    ]
    return markdown(["rate, Hz", "plans ahead", "mean max reward", "strict success"], lines)


def control_realtime() -> str:
    """Tabulate a simulated robot in real time, 60 s at each rate."""
    head = ["rate, Hz", "commands", "periods without command", "commands without plan", "late plans"]
    head += ["step median, ms", "step p99, ms", "steps above a period of processor time"]
    lines = []
    for row in read("control_loop")["realtime"]:
        counts = [row[key] for key in ("commands", "periods_without_command", "no_plan", "late_plans")]
        times = [f"{row[key] / 1e3:.2f}" for key in ("step_p50_us", "step_p99_us")]
        lines.append([f"{row['rate_hz']:g}", *counts, *times, row["slow_steps"]])
    return markdown(head, lines)


def camera_loop() -> str:
    """Tabulate a session with two cameras next to busy processes, with and without encoding."""
    names = ["commands", "encoded", "long_steps", "long_in_processor_time", "periods_without_command"]
    names += ["plans", "late_plans"]
    columns = {"encodes frames": "encodes", **{name.replace("_", " "): name for name in names}}
    return tabulate(read("camera_loop"), columns)


TABLES: dict[str, Callable[[], str]] = {
    "g1_policy": g1_policy,
    "g1_likelihood": g1_likelihood,
    "g1_errors": g1_errors,
    "g1_coverage": g1_coverage,
    "bifurcation": bifurcation,
    "control_delays": control_delays,
    "control_rates": control_rates,
    "control_realtime": control_realtime,
    "camera_loop": camera_loop,
}
