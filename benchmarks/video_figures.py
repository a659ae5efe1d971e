"""Figures of benchmarks/video.py: scores against network calls, and by predicted frame."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.eval.compare.plots import MARKERS, REFERENCE_COLOUR, ROW_COLOURS
from nsde_policy.eval.offline.figures import draw_error
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures
from nsde_policy.eval.video.evaluate import BASELINES_OF_VIDEO, VIDEO_FIGURES, VideoRow, VideoScores

RISING_FIGURES = ("psnr", "ssim")
"""Figures of which more is better; of the others, except for motion, less is better."""
FOUR_FIGURES = ("psnr", "ssim", "motion", "centroid")
"""Figures that are drawn by default."""
BASELINE_COLOURS = ("#555555", "#AAAAAA")


def draw_call_curves(
    curves: Mapping[str, Mapping[int, VideoRow]],
    out: Path,
    *,
    baselines: Mapping[str, VideoRow] | None = None,
    figures: Sequence[str] = FOUR_FIGURES,
    name: str = "calls",
    dashed: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write figures against the number of network calls per frame as PNG and SVG.

    Args:
        curves: Rows of each method by the number of calls; the first method is drawn as the reference.
        out: Folder for the files.
        baselines: Rows that make no calls, drawn as lines across.
        figures: Names of `VIDEO_FIGURES` or of distances.
        name: Stem of the file names.
        dashed: Labels of methods that are drawn dashed, and of those whose colour they share.
    """
    shared = {label: of for label, of in (dashed or {}).items() if of in curves}
    solid = [label for label in curves if label not in shared]
    palette = dict(zip(solid, itertools.cycle((REFERENCE_COLOUR, *ROW_COLOURS)), strict=False))
    with plot_style():
        figure, axes = make_figure(1, len(figures), (2.6 * len(figures), 2.7))
        for axis, wanted in zip(axes[0], figures, strict=True):
            for i, (label, rows) in enumerate(curves.items()):
                look = {"color": palette[shared.get(label, label)], "ls": "--" if label in shared else "-"}
                estimates = {calls: rows[calls].estimate(wanted) for calls in sorted(rows)}
                _draw_calls(axis, estimates, i, label=label, **look)
            for (label, row), grey in zip((baselines or {}).items(), BASELINE_COLOURS, strict=False):
                axis.axhline(row.estimate(wanted).value, ls="--", lw=0.9, color=grey, label=label, zorder=1)
            _title(axis, wanted)
            axis.set_xscale("log")
            every = sorted({calls for rows in curves.values() for calls in rows})
            axis.set_xticks(every, [str(calls) for calls in every])
            axis.minorticks_off()
            axis.set_xlabel("network calls per frame")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=5
        )
        return save_figures({name: figure}, out)


def _draw_calls(axis: Any, estimates: Mapping[int, Any], number: int, **look: Any) -> None:
    """Draw one method with its intervals, moved aside a little so that intervals do not hide each other."""
    calls = np.array([*estimates]) * 1.04**number
    value, low, high = (
        np.array([getattr(e, end) for e in estimates.values()]) for end in ("value", "low", "high")
    )
    reach = np.nan_to_num(np.stack([value - low, high - value]).clip(0))
    axis.errorbar(
        calls, value, reach, marker=MARKERS[number % len(MARKERS)], ms=3.5, lw=1.2, elinewidth=0.9,
        capsize=2, zorder=3, **look,
    )  # fmt: skip


def draw_frame_curves(
    scores: VideoScores, out: Path, *, figures: Sequence[str] = FOUR_FIGURES, name: str = "frames"
) -> list[Path]:
    """Write figures by predicted frame with their 95 % intervals as PNG and SVG.

    Figures that the scores do not hold, such as positions of videos without objects, are left out.
    """
    known = [wanted for wanted in figures if all(wanted in row.sums for row in scores.rows.values())]
    with plot_style():
        figure, axes = make_figure(1, len(known), (2.6 * len(known), 2.7))
        for axis, wanted in zip(axes[0], known, strict=True):
            colours, greys = itertools.cycle((REFERENCE_COLOUR, *ROW_COLOURS)), iter(BASELINE_COLOURS)
            for label, row in scores.rows.items():
                is_baseline = label in BASELINES_OF_VIDEO
                colour, line = (next(greys), "--") if is_baseline else (next(colours), "-")
                draw_error(axis, row.sums[wanted], label, colour, line=line)
            _title(axis, wanted)
            axis.set_xlabel("predicted frame")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(),
            frameon=False,
            loc="outside lower center",
            ncols=5 if len(known) > 2 else 3,
        )
        return save_figures({name: figure}, out)


def _title(axis: Any, figure: str) -> None:
    """Title a panel with the name of a figure and what is good."""
    good = "higher" if figure in RISING_FIGURES else "1 is right" if figure == "motion" else "lower"
    axis.set_title(
        f"{VIDEO_FIGURES.get(figure, figure)} ({good}{'' if figure == 'motion' else ' is better'})"
    )
