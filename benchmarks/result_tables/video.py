"""Tables of video prediction."""

from collections.abc import Callable
from functools import partial

from result_tables.files import cell, markdown, read

FIGURES = {"psnr": ("PSNR, dB", 2), "ssim": ("SSIM", 3), "motion": ("motion", 2)}
BASELINES = "no model"
METHODS = ("Neural SDE", "Flow Matching", "Flow Matching, unrolled", "PFI", "PFI, unrolled")


def video_trials(*, methods: bool) -> str:
    """Tabulate figures of 12 predicted frames: of all methods, or of one call of the ablations."""
    head = ["model", "prediction", "trainings", *(title for title, _ in FIGURES.values())]
    lines = []
    for row in read("video")["rows"]:
        variant, trial = row["variant"], row["trial"]
        if variant != BASELINES and (variant in METHODS) != methods:
            continue
        cells = [variant, trial.replace("1 calls", "1 call")]
        cells += [len(row["psnr"]["seeds"]), *(cell(row[name], n) for name, (_, n) in FIGURES.items())]
        lines.append([*cells, cell(row["difference"], 2)])
    return markdown([*head, "paired difference, dB"], lines)


def video_scaling() -> str:
    """Tabulate the reduced loss of networks of six sizes, and the fitted power law."""
    law = read("video")["scaling"]
    lines = [
        [f"{int(size) / 1e6:.2f}", ", ".join(f"{loss:.4f}" for loss in losses)]
        for size, losses in law["sizes"].items()
    ]
    for title, value in (("slope of the logarithms", law["slope"]), ("Pearson's r", law["pearson"])):
        lines.append([title, f"{value:.3f}".replace("-", "−")])
    return markdown(["million weights", "reduced loss of each training"], lines)


def video_preset() -> str:
    """Tabulate what `video eval` wrote about the preset `fast`."""
    lines = [
        [name, *(cell(row[figure], decimals) for figure, (_, decimals) in FIGURES.items())]
        for name, row in read("video_fast_preset")["rows"].items()
    ]
    return markdown(["model", *(title for title, _ in FIGURES.values())], lines)


TABLES: dict[str, Callable[[], str]] = {
    "video_methods": partial(video_trials, methods=True),
    "video_ablation": partial(video_trials, methods=False),
    "video_scaling": video_scaling,
    "video_preset": video_preset,
}
