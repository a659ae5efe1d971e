"""Plots of a comparison: scores against latency, and the paths of episodes."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.eval.compare.path_plots import draw_paths
from nsde_policy.eval.compare.result import ACTIONS, Comparison
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures
from nsde_policy.eval.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE_COLOUR = "#0072B2"
ROW_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's colours, safe for colour-blind readers, and a grey."""
MARKERS = "sD^vph<>"
STYLE_CHANGES = {"axes.axisbelow": True, "xtick.color": "#333333", "ytick.color": "#333333"}
LONGEST_NAME = 26
"""Most characters in a line of the legend."""


def draw_comparison(comparison: Comparison, out: Path, *, reference: str | None = None) -> list[Path]:
    """Write every figure that the entries allow as PNG and SVG; return the paths."""
    with plot_style(**STYLE_CHANGES):
        figures = {
            "score_vs_latency": draw_latency(comparison, reference=reference),
            "paths": draw_paths(comparison),
        }
        return save_figures(figures, out)


def draw_latency(comparison: Comparison, *, reference: str | None = None) -> "Figure | None":
    """Draw score and success against the latency of eight actions, of the rows that were timed.

    Blue and bold is the reference. Every other row has its own colour and marker.
    """
    points = [(row, row.latency.median) for row in comparison.main_rows() if row.latency is not None]
    if len(points) < 2:
        return None
    chosen, scores = comparison.reference(reference), comparison.columns
    figure, axes = make_figure(len(scores), 1, (6.8, 0.6 + 2.2 * len(scores)), sharex=True)
    for axis, score in zip(axes[:, 0], scores, strict=True):
        for i, (row, latency) in enumerate(points):
            colour, marker = ROW_COLOURS[i % len(ROW_COLOURS)], MARKERS[i % len(MARKERS)]
            if row is chosen:
                colour, marker = REFERENCE_COLOUR, "o"
            label = textwrap.fill(row.label, LONGEST_NAME)
            draw_estimate(axis, latency, getattr(row, score), colour, marker, label)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_ylabel(comparison.column_title(score))
        axis.grid(color="#E6E6E6", linewidth=0.6)
    axes[-1, 0].set_xlabel(f"latency of {ACTIONS} actions, ms")
    handles = axes[0, 0].get_legend_handles_labels()
    legend = figure.legend(*handles, loc="outside right center", frameon=False, fontsize=6.5)
    for text, (row, _) in zip(legend.get_texts(), points, strict=True):
        text.set_fontweight("bold" if row is chosen else "normal")
    return figure


def draw_estimate(axis: "Axes", x: float, score: Estimate, colour: str, marker: str, label: str) -> None:
    """Draw a marker at the score and a line over its interval, which a single sample does not have."""
    low, high = (score.low, score.high) if score.n > 1 else (score.value, score.value)
    axis.errorbar(
        x,
        score.value,
        yerr=[[max(score.value - low, 0.0)], [max(high - score.value, 0.0)]],
        fmt=marker,
        color=colour,
        label=label,
        elinewidth=1.0,
        markersize=4.8,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
    )
