"""Tables of video prediction."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from result_tables.files import NONE, cell, markdown, read

FIGURES = {"psnr": ("PSNR, dB", 2), "ssim": ("SSIM", 3), "motion": ("motion", 2)}
BASELINES = "no model"
REPEATED = "repeat the last frame"
ABLATION = "default, first phase"


def _describe(trial: str) -> str:
    return re.sub(r"\b1 calls", "1 call", trial)


def video_trials(file: str, *variants: str, without: bool = False) -> str:
    """Tabulate PSNR, SSIM, motion and centroid error of some variants in every trial."""
    found = read(file)
    head = ["model", "prediction", "training seeds", *(title for title, _ in FIGURES.values())]
    head += ["PSNR of each seed", "paired difference, dB", "first frame, dB", "centroid, px", "lost, %"]
    lines = []
    for row in found["rows"]:
        wanted = row["variant"] in variants if variants else True
        if wanted == without and row["variant"] != BASELINES:
            continue
        cells = [row["variant"], _describe(row["trial"]), len(row["psnr"]["seeds"])]
        cells += [cell(row[name], decimals) for name, (_, decimals) in FIGURES.items()]
        cells.append(", ".join(f"{value:.2f}" for value in row["psnr"]["seeds"]))
        cells += [cell(row["difference"], 2), f"{row['per_frame']['psnr'][0]:.1f}"]
        lines.append([*cells, cell(row["centroid"], 2), cell(row["lost"], 1, 100)])
    return markdown(head, lines)


METHODS = ("Neural SDE", "Flow Matching", "Flow Matching, unrolled", "PFI", "PFI, unrolled")


def video_scaling() -> str:
    """Tabulate the reduced loss of networks of six sizes, and the fitted power law."""
    law = read("video")["scaling"]
    lines = [
        [f"{int(size) / 1e6:.2f}", ", ".join(f"{loss:.4f}" for loss in losses)]
        for size, losses in law["sizes"].items()
    ]
    lines += [["slope of the logarithms", cell(law["slope"])], ["Pearson's r", cell(law["pearson"])]]
    return markdown(["million weights", "reduced loss of each training seed"], lines)


def video_costs() -> str:
    """Tabulate training time and time of a network call, of runs that were timed."""
    lines = [
        [
            run["variant"],
            run["seed"],
            f"{run['parameters'] / 1e6:.1f}",
            f"{run['seconds']:.0f}" if run["seconds"] else NONE,
            ", ".join(f"{name} {ms:.1f}" for name, ms in (run["latency_ms"] or {}).items()) or NONE,
            run["device"],
        ]
        for run in read("video")["runs"]
        if run["seconds"] or run["latency_ms"]
    ]
    return markdown(
        ["run", "seed", "million weights", "training, s", "ms per call, batch 1", "device"], lines
    )


def _tabulate_rows(rows: Mapping[str, Any], title: str) -> list[list[str]]:
    return [
        [
            title,
            name,
            *(cell(row.get(figure), decimals) for figure, (_, decimals) in FIGURES.items()),
            cell(row.get("centroid"), 2),
            cell(row.get("physics"), 2),
        ]
        for name, row in rows.items()
    ]


def video_evaluations() -> str:
    """Tabulate what `video eval` wrote: physics distance and the preset `fast`."""
    files = {
        "video_physics": "collisions, 256 videos",
        "video_fast_preset": "collisions, preset `fast`",
    }
    lines = [line for file, title in files.items() for line in _tabulate_rows(read(file)["rows"], title)]
    head = ["videos", "model", *(title for title, _ in FIGURES.values()), "centroid, px", "physics distance"]
    return markdown(head, lines)


def video_superres() -> str:
    """Tabulate frames between frames: quality, positions and contacts that no whole frame shows."""
    names = {"between_psnr": 1, "whole_psnr": 1, "position_error": 2}
    lines = []
    for part, rows in read("video_superres")["scores"].items():
        for label, row in rows.items():
            cells = [cell(row[name], decimals) for name, decimals in names.items()]
            cells += [cell(row[name], 1, 100) for name in ("reached", "rebounded")]
            lines.append([part, label, *cells])
    head = ["prediction", "frames between", "PSNR between, dB", "PSNR of whole frames, dB"]
    return markdown([*head, "position error, px", "contacts reached, %", "rebound right, %"], lines)


def video_features() -> str:
    """Tabulate what the physics network finds in single frames, and which faults its distance notices."""
    found = read("video_features")
    errors = found["errors"]
    lines = [
        [name.replace("_", " "), *(f"{each[name]:.3f}" for each in errors.values())]
        for name in next(iter(errors.values()))
    ]
    spoilt = [[label, f"{value:.3f}"] for label, value in found["distances"].items()]
    return "\n\n".join(
        [
            markdown(["single frames", *errors], lines),
            markdown(["true videos whose last 12 frames are spoilt", "physics distance"], spoilt),
        ]
    )


TABLES: dict[str, Callable[[], str]] = {
    "video_calls": partial(video_trials, "video", *METHODS),
    "video_ablation": partial(video_trials, "video", *METHODS, without=True),
    "video_small_ablation": partial(video_trials, "video_fast"),
    "video_settings": partial(video_trials, "video_settings"),
    "video_scaling": video_scaling,
    "video_costs": video_costs,
    "video_evaluations": video_evaluations,
    "video_superres": video_superres,
    "video_features": video_features,
}
