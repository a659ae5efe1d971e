"""Tables of video prediction."""

import re
from collections.abc import Callable
from functools import partial

from result_tables.files import cell, markdown, read

FIGURES = {"psnr": ("PSNR, dB", 2), "ssim": ("SSIM", 3), "motion": ("motion", 2)}
BASELINES = "no model"


def _describe(trial: str) -> str:
    return re.sub(r"\b1 calls", "1 call", trial)


def video_trials(file: str, *variants: str, without: bool = False) -> str:
    """Tabulate PSNR, SSIM and motion of some variants in every trial."""
    head = ["model", "prediction", "training seeds", *(title for title, _ in FIGURES.values())]
    head += ["PSNR of each seed", "paired difference, dB", "first frame, dB"]
    lines = []
    for row in read(file)["rows"]:
        is_named = row["variant"] in variants if variants else True
        if is_named == without and row["variant"] != BASELINES:
            continue
        cells = [row["variant"], _describe(row["trial"]), len(row["psnr"]["seeds"])]
        cells += [cell(row[name], decimals) for name, (_, decimals) in FIGURES.items()]
        cells.append(", ".join(f"{value:.2f}" for value in row["psnr"]["seeds"]))
        lines.append([*cells, cell(row["difference"], 2), f"{row['per_frame']['psnr'][0]:.1f}"])
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


def video_preset() -> str:
    """Tabulate what `video eval` wrote about the preset `fast`."""
    lines = [
        [name, *(cell(row[figure], decimals) for figure, (_, decimals) in FIGURES.items())]
        for name, row in read("video_fast_preset")["rows"].items()
    ]
    return markdown(["model", *(title for title, _ in FIGURES.values())], lines)


TABLES: dict[str, Callable[[], str]] = {
    "video_calls": partial(video_trials, "video", *METHODS),
    "video_ablation": partial(video_trials, "video", *METHODS, without=True),
    "video_scaling": video_scaling,
    "video_preset": video_preset,
}
