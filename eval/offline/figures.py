"""Figure of a score on recorded episodes: error by horizon and coverage of intervals."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nsde_policy.eval.offline.comparison import BASELINE_PREDICTORS, OfflineComparison
from nsde_policy.eval.offline.frames import EPISODE_PARTS
from nsde_policy.eval.offline.result import (
    COVERAGE_LEVELS,
    COVERAGES,
    NO_COVERAGE,
    PART_TITLES,
    PREDICTORS,
    OfflineScore,
)
from nsde_policy.eval.offline.sums import EpisodeSums
from nsde_policy.eval.render.plotting import encode_figure, make_figure, plot_style, pyplot, save_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of the lines and bars, told apart with colour-blindness (Okabe and Ito)."""


def draw_offline_score(score: OfflineScore, out: Path) -> list[Path]:
    """Write the figure of one score as `offline.png` and `offline.svg` into a directory."""
    with plot_style():
        figure = _draw(score)
        return save_figures({"offline": figure}, out)


def draw_offline_comparison(comparison: OfflineComparison, out: Path) -> list[Path]:
    """Write the figure of several scores as `offline.png` and `offline.svg` into a directory."""
    with plot_style():
        return save_figures({"offline": _draw_comparison(comparison)}, out)


def render_offline_comparison(comparison: OfflineComparison) -> bytes:
    """Return the figure of several scores as PNG."""
    with plot_style():
        figure = _draw_comparison(comparison)
        content = encode_figure(figure, "png")
        pyplot().close(figure)
    return content


def _draw_comparison(comparison: OfflineComparison) -> "Figure":
    """Draw error by horizon of each run and the baselines, and two kinds of coverage."""
    figure, axes = make_figure(1, 3, (10.0, 3.2))
    errors, *coverages = axes[0]
    for run, colour in zip(comparison.runs, itertools.cycle(SERIES_COLOURS), strict=False):
        draw_error(errors, run.score.error("sample"), run.label, colour)
    for name, grey in zip(BASELINE_PREDICTORS, ("#555555", "#aaaaaa"), strict=True):
        draw_error(errors, comparison.longest.error(name), PREDICTORS[name], grey, line="--")
    errors.set_title("one sampled plan")
    errors.set_xlabel("horizon, control periods")
    errors.set_ylabel("action error, standard deviations")
    errors.set_ylim(bottom=0)
    errors.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*errors.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=4)
    for axis, name in zip(coverages, ("coverage_actions", "coverage_plans"), strict=True):
        found = {run.label: run.score.coverage(name) for run in comparison.runs}
        draw_coverage(axis, found)
        missing = [label for label, each in found.items() if each is None]
        if missing:
            names = "" if len(missing) == len(found) else f"{', '.join(missing)}: "
            _explain_missing(axis, [names + NO_COVERAGE[name]])
        axis.set_title(f"coverage, {COVERAGES[name]}")
        axis.set_ylabel("recorded steps inside")
        axis.set_ylim(0, 1.02)
    return figure


def _draw(score: OfflineScore) -> "Figure":
    figure, axes = make_figure(2, len(EPISODE_PARTS), (9.0, 4.8), sharey="row")
    for column, part in enumerate(EPISODE_PARTS):
        top, bottom = axes[:, column]
        for (name, title), colour in zip(PREDICTORS.items(), SERIES_COLOURS, strict=False):
            line = "--" if name in BASELINE_PREDICTORS else "-"
            draw_error(top, score.error(name, part), title, colour, line=line)
        top.set_title(PART_TITLES[part])
        top.set_xlabel("horizon, control periods")
        bars = {title: score.coverage(name, part) for name, title in COVERAGES.items()}
        draw_coverage(bottom, bars)
        missing = [name for name in COVERAGES if bars[COVERAGES[name]] is None]
        if missing:
            _explain_missing(bottom, [f"{COVERAGES[name]}: {NO_COVERAGE[name]}" for name in missing])
    axes[0, 0].set_ylabel("action error, standard deviations")
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False, fontsize=7)
    axes[1, 0].set_ylabel("recorded steps inside")
    if axes[1, 0].get_legend_handles_labels()[1]:
        axes[1, 0].legend(frameon=False, fontsize=7, loc="upper left")
    return figure


def _explain_missing(axis: Any, reasons: list[str]) -> None:
    """Write below a panel, or into an empty one, why bars are missing."""
    text = "\n".join(reasons)
    if axis.patches:
        axis.set_xlabel(f"{axis.get_xlabel()}\n{text}")
    else:
        axis.text(0.5, 0.25, text, transform=axis.transAxes, ha="center", va="center", color="#555555")


def draw_error(axis: Any, error: EpisodeSums, title: str, colour: str, *, line: str = "-") -> None:
    """Draw an error by horizon, (episodes, horizon), with its 95 % interval as a band."""
    value, low, high = error.estimate()
    horizon = np.arange(1, len(value) + 1)
    if len(value) == 1:
        reach = np.nan_to_num(np.stack([value - low, high - value]).clip(0))
        axis.errorbar(horizon, value, reach, fmt="o", ms=4, lw=1.3, capsize=3, color=colour, label=title)
        axis.set_xticks([1])
        return
    axis.plot(horizon, value, line, lw=1.3, color=colour, label=title)
    axis.fill_between(horizon, low, high, color=colour, alpha=0.18, lw=0)


def draw_coverage(axis: Any, bars: dict[str, EpisodeSums | None]) -> None:
    """Draw coverages (episodes, levels) as bars beside each other, with the nominal levels as lines."""
    width = 0.8 / max(len(bars), 1)
    colours = itertools.cycle(SERIES_COLOURS)
    for i, ((title, found), colour) in enumerate(zip(bars.items(), colours, strict=False)):
        if found is None:
            continue
        value, low, high = found.estimate()
        x = np.arange(len(COVERAGE_LEVELS)) + (i - (len(bars) - 1) / 2) * width
        reach = np.nan_to_num(np.stack([value - low, high - value]).clip(0))
        axis.bar(x, value, width * 0.9, yerr=reach, color=colour, label=title, error_kw={"lw": 0.8})
    for i, level in enumerate(COVERAGE_LEVELS):
        axis.plot([i - 0.45, i + 0.45], [level, level], color="black", lw=0.9, ls=":")
    axis.set_xticks(range(len(COVERAGE_LEVELS)), [f"{100 * level:.0f} %" for level in COVERAGE_LEVELS])
    axis.set_xlabel("central interval")
    axis.set_ylim(0, 1.35)  # with room for a legend
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1])
