"""Plots of a comparison: scores against latency, and against the strength of disturbances.

Blue is the reference. Every other row has its own colour and marker, the same in all figures.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsde_policy.eval.compare.path_plots import draw_paths
from nsde_policy.eval.compare.result import ACTIONS, Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures
from nsde_policy.eval.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE_COLOUR = "#0072B2"
ROW_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's colours, safe for colour-blind readers, and a grey."""
MARKERS = "osD^vph<"
GRID: dict[str, Any] = {"color": "#E6E6E6", "linewidth": 0.6}
STYLE_CHANGES = {"axes.axisbelow": True, "xtick.color": "#333333", "ytick.color": "#333333"}
NAME_SIZE, LONGEST_NAME = 6.5, 26
"""Font size of row names in legends, points, and most characters in a line."""
AXIS_LABELS = {
    "latency_steps": "delay of plans, control periods",
    "obs_noise": "observation noise, std of one period's change",
    "push": "push of the block, px",
}


@dataclass(frozen=True)
class RowStyle:
    """Colour and marker of a row; the reference is bold."""

    colour: str
    marker: str
    bold: bool


Styles = Mapping[str, RowStyle]
"""Styles by the name of the row."""


def draw_comparison(comparison: Comparison, out: Path, *, reference: str | None = None) -> list[Path]:
    """Write every figure that the entries allow as PNG and SVG; return the paths."""
    styles = choose_styles(comparison, reference)
    with plot_style(**STYLE_CHANGES):
        figures = {
            "score_vs_latency": draw_latency(comparison, styles),
            "robustness": draw_robustness(comparison, styles),
            "paths": draw_paths(comparison),
        }
        return save_figures(figures, out)


def choose_styles(comparison: Comparison, reference: str | None) -> Styles:
    """Choose a style for every row name."""
    names = comparison.names
    first = comparison.reference(reference).first.name if comparison.main_rows() else names[0]
    styles = {first: RowStyle(REFERENCE_COLOUR, MARKERS[0], True)}
    for i, name in enumerate(name for name in names if name != first):
        styles[name] = RowStyle(ROW_COLOURS[i % len(ROW_COLOURS)], MARKERS[(i + 1) % len(MARKERS)], False)
    return styles


def draw_latency(comparison: Comparison, styles: Styles) -> "Figure | None":
    """Draw score and success against the latency of eight actions, of the rows that were timed."""
    points = [(row, row.latency.median) for row in comparison.main_rows() if row.latency is not None]
    if len(points) < 2:
        return None
    scores = comparison.columns
    figure, axes = make_figure(len(scores), 1, (6.8, 0.6 + 2.2 * len(scores)), sharex=True)
    for axis, score in zip(axes[:, 0], scores, strict=True):
        for row, value in points:
            _draw_estimate(axis, value, getattr(row, score), styles[row.name])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_ylabel(comparison.column_title(score))
        axis.grid(**GRID)
    axes[-1, 0].set_xlabel(f"latency of {ACTIONS} actions, ms")
    _add_legend(figure, {row.name: row for row, _ in points}, styles)
    return figure


def draw_robustness(comparison: Comparison, styles: Styles) -> "Figure | None":
    """Draw one panel per disturbance: the deciding score against its strength, with intervals."""
    score = comparison.columns[-1]
    sweeps = {axis: found for axis in AXIS_LABELS if (found := comparison.sweep(axis))}
    if not sweeps:
        return None
    figure, axes = make_figure(1, len(sweeps), (2.6 * len(sweeps) + 1.5, 2.5), sharey=True)
    for panel, (axis, swept) in zip(axes[0], sweeps.items(), strict=True):
        for name, rows in swept.items():
            style, y = styles[name], [getattr(row, score).value for row in rows.values()]
            panel.plot(list(rows), y, color=style.colour, linewidth=1.6 if style.bold else 1.0)
            for value, row in rows.items():
                _draw_estimate(panel, value, getattr(row, score), style)
        panel.set_xticks(sorted({value for rows in swept.values() for value in rows}))
        panel.set_xlabel(AXIS_LABELS[axis])
        panel.grid(axis="y", **GRID)
    axes[0, 0].set_ylabel(comparison.column_title(score))
    drawn = [row for swept in sweeps.values() for along in swept.values() for row in along.values()]
    _add_legend(figure, {row.name: row for row in drawn}, styles)
    return figure


def _draw_estimate(axis: "Axes", x: float, score: Estimate, style: RowStyle) -> None:
    """Draw a marker at the score and a line over its interval, which a single sample does not have."""
    low, high = (score.low, score.high) if score.n > 1 else (score.value, score.value)
    axis.errorbar(
        x,
        score.value,
        yerr=[[max(score.value - low, 0.0)], [max(high - score.value, 0.0)]],
        fmt=style.marker,
        color=style.colour,
        elinewidth=1.0 + 0.4 * style.bold,
        markersize=4.8 + 0.6 * style.bold,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3 + style.bold,
    )


def _add_legend(figure: "Figure", rows: Mapping[str, Row], styles: Styles) -> None:
    """Name every row next to its marker, right of the panels."""
    from matplotlib.lines import Line2D

    handles = []
    for name, row in rows.items():
        style = styles[name]
        label = textwrap.fill(row.label, LONGEST_NAME)
        handles.append(Line2D([], [], color=style.colour, marker=style.marker, markersize=4.8, label=label))
    legend = figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=NAME_SIZE)
    for text, name in zip(legend.get_texts(), rows, strict=True):
        text.set_fontweight("bold" if styles[name].bold else "normal")
