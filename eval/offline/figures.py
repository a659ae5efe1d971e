"""Figure of scores on recorded episodes: error by horizon and coverage of intervals."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nsde_policy.eval.compare.plots import REFERENCE_COLOUR, ROW_COLOURS
from nsde_policy.eval.offline.comparison import BASELINE_PREDICTORS, OfflineComparison
from nsde_policy.eval.offline.result import COVERAGE_LEVELS, COVERAGES, PREDICTORS
from nsde_policy.eval.offline.sums import EpisodeSums
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES_COLOURS = (REFERENCE_COLOUR, *ROW_COLOURS)


def draw_offline_comparison(comparison: OfflineComparison, out: Path) -> list[Path]:
    """Write the figure of several scores as `offline.png` and `offline.svg` into a directory."""
    with plot_style():
        return save_figures({"offline": _draw_comparison(comparison)}, out)


def _draw_comparison(comparison: OfflineComparison) -> "Figure":
    """Draw error by horizon of each run and the baselines, and two kinds of coverage."""
    figure, axes = make_figure(1, 3, (10.0, 3.2))
    errors, *coverages = axes[0]
    for run, colour in zip(comparison.runs, itertools.cycle(SERIES_COLOURS), strict=False):
        draw_error(errors, run.error("sample"), run.label, colour)
    longest = max(comparison.runs, key=lambda run: run.horizon)
    for name, grey in zip(BASELINE_PREDICTORS, ("#555555", "#aaaaaa"), strict=True):
        draw_error(errors, longest.error(name), PREDICTORS[name], grey, line="--")
    errors.set_title("one sampled plan")
    errors.set_xlabel("horizon, control periods")
    errors.set_ylabel("action error, standard deviations")
    errors.set_ylim(bottom=0)
    errors.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*errors.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=4)
    for axis, name in zip(coverages, ("coverage_actions", "coverage_plans"), strict=True):
        draw_coverage(axis, {run.label: run.coverage(name) for run in comparison.runs})
        axis.set_title(f"coverage, {COVERAGES[name]}")
        axis.set_ylabel("recorded steps inside")
        axis.set_ylim(0, 1.02)
    return figure


def draw_error(axis: "Axes", error: EpisodeSums, title: str, colour: str, *, line: str = "-") -> None:
    """Draw an error by horizon, (episodes, horizon), with its 95 % interval as a band."""
    value, low, high = error.intervals
    horizon = np.arange(1, len(value) + 1)
    marker = "o" if len(value) == 1 else None
    axis.plot(horizon, value, line, lw=1.3, color=colour, label=title, marker=marker)
    axis.fill_between(horizon, low, high, color=colour, alpha=0.18, lw=0)


def draw_coverage(axis: "Axes", bars: dict[str, EpisodeSums | None]) -> None:
    """Draw coverages (episodes, levels) as bars next to each other, with the nominal levels as lines."""
    width = 0.8 / max(len(bars), 1)
    colours = itertools.cycle(SERIES_COLOURS)
    for i, ((title, found), colour) in enumerate(zip(bars.items(), colours, strict=False)):
        if found is None:
            continue
        value, low, high = found.intervals
        x = np.arange(len(COVERAGE_LEVELS)) + (i - (len(bars) - 1) / 2) * width
        reach = np.nan_to_num(np.stack([value - low, high - value]).clip(0))
        axis.bar(x, value, width * 0.9, yerr=reach, color=colour, label=title, error_kw={"lw": 0.8})
    for i, level in enumerate(COVERAGE_LEVELS):
        axis.plot([i - 0.45, i + 0.45], [level, level], color="black", lw=0.9, ls=":")
    axis.set_xticks(range(len(COVERAGE_LEVELS)), [f"{100 * level:.0f} %" for level in COVERAGE_LEVELS])
    axis.set_xlabel("central interval")
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
