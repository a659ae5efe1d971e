"""Tables of the real robot's recordings, the 2-D bifurcation, the control loop and the method itself."""

from collections.abc import Callable, Mapping
from typing import Any

from result_tables.files import NONE, cell, group, markdown, read

HORIZONS = (1, 4, 8, 16)
"""Control periods ahead whose errors are shown."""
G1_SPLITS = (5, 29)
"""Splits of the G1's episodes that are reported; settings were chosen on split 0."""
G1_ROWS = {
    "neural_sde:step_inputs=1,history_noise=shared,steps=1500, calibrated": "Neural SDE, step inputs, 1,500",
    "neural_sde:step_inputs=1,history_noise=shared,steps=5000, calibrated": "Neural SDE, step inputs, 5,000",
    "neural_sde, calibrated": "Neural SDE",
    "linear model": "linear model (Gaussian)",
    "flow": "Streaming flow (Gaussian)",
    "random walk": "random walk (Gaussian)",
    "regression:steps=5000": "Regression (Gaussian)",
    "mip:steps=5000": "Two-step MIP (Gaussian)",
    "lstm_gmm:steps=1500": "LSTM-GMM",
    "bet:steps=1500": "Behaviour Transformer (Gaussian)",
    "knn": "Nearest neighbours (Gaussian)",
}
"""Rows of the files that are shown, by what the table calls them."""


def _pick(estimates: Mapping[str, Any] | None, index: int, decimals: int = 3) -> str:
    """Format one entry of an estimate of several numbers."""
    if estimates is None or len(estimates["value"]) <= index:
        return NONE
    return cell({key: estimates[key][index] for key in ("value", "low", "high")}, decimals)


def g1_policy() -> str:
    """Tabulate errors of actions by horizon, 5,000 steps of the preset `auto`."""
    errors = read("g1_eval")["parts"]["all"]["error_in_std"]
    names = {"sample": "one sampled plan", "repeat": "repeat the last action"}
    lines = [[title, *(_pick(errors[name], h - 1) for h in HORIZONS)] for name, title in names.items()]
    ahead = [f"{h} period{'s' * (h > 1)} ahead" for h in HORIZONS]
    return markdown(["RMS error, in standard deviations of the actions", *ahead], lines)


def g1_methods() -> str:
    """Tabulate likelihoods, errors and coverage of every method on the reported splits."""
    splits = [read(f"g1_offline_{seed}")["rows"] for seed in G1_SPLITS]
    lines = []
    for name, title in G1_ROWS.items():
        rows = [split[name] for split in splits]
        cells = [cell(row["log_prob_action"], 1) for row in rows]
        cells += [_pick(row.get("error"), 7) for row in rows]
        cells += [_pick(row.get("coverage_action"), 2, 2) for row in rows]
        lines.append([title, *cells])
    repeated = [_pick(split["flow"]["error_repeat"], 7) for split in splits]
    lines.append(["repeat the last action", NONE, NONE, *repeated, NONE, NONE])
    figures = ("log p(action)", "error 8 ahead", "inside 95 % of σ")
    head = [f"{figure}, split {seed}" for figure in figures for seed in G1_SPLITS]
    return markdown(["method", *head], lines)


def bifurcation() -> str:
    """Tabulate branches of generated paths at both densities; in brackets the extremes of three seeds."""
    head = ["method"]
    by_method = group(read("bifurcation")["summary"], lambda row: row["label"])
    lines = []
    for label, rows in by_method.items():
        if label != "Flow + Denoiser + Diffusion":  # the Neural SDE once more
            cells = [cell(row[key], 1, 100) for row in rows for key in ("upper", "off_branch")]
            met = ", ".join("yes" if row["bars_met"] else "no" for row in rows)
            lines.append([label, *cells, f"{rows[-1]['network_calls']:,}", met])
            head = [f"{what} %, {100 * row['density']}" for row in rows for what in ("upper", "off")]
    return markdown(["method", *head, "network calls", "bars met"], lines)


def control_delays() -> str:
    """Tabulate Push-T with planning that takes 0 to 4 control periods."""
    rows = group(read("control_loop")["delays"], lambda row: row["delay_s"])
    lines = []
    for delay, pair in rows.items():
        success = {row["ahead"]: cell(row["success"]) for row in pair}
        lines.append([f"{10 * delay:g}", success.get(False, NONE), success.get(True, NONE)])
    return markdown(["planning takes, periods", "strict success", "with `plan_ahead`"], lines)


def control_realtime() -> str:
    """Tabulate a simulated robot in real time, 60 s at each rate."""
    head = ["rate, Hz", "commands", "periods without command", "late plans", "step median, ms", "p99, ms"]
    lines = []
    for row in read("control_loop")["realtime"]:
        counts = [row[key] for key in ("commands", "periods_without_command", "late_plans")]
        times = [f"{row[key] / 1e3:.2f}" for key in ("step_p50_us", "step_p99_us")]
        lines.append([f"{row['rate_hz']:g}", *counts, *times])
    return markdown(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "g1_policy": g1_policy,
    "g1_methods": g1_methods,
    "bifurcation": bifurcation,
    "control_delays": control_delays,
    "control_realtime": control_realtime,
}
