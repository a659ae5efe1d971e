"""Plots of a comparison: scores against latency, and sweeps.

Blue is the reference. Every other row has its own colour and marker, the same in all figures.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nsde_policy.eval.compare.path_plots import draw_paths
from nsde_policy.eval.compare.result import ACTIONS, CONDITIONS, Comparison
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
    "chunk": "actions executed before replanning, Tₐ",
    "demos": "demonstrations",
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
Sweep = Mapping[str, Mapping[float, Row]]
"""Rows by name and by the value of the varied setting."""


def draw_comparison(comparison: Comparison, out: Path, *, reference: str | None = None) -> list[Path]:
    """Write every figure that the entries allow as PNG and SVG; return the paths."""
    styles, deciding = choose_styles(comparison, reference), comparison.columns[-1:]
    with plot_style(**STYLE_CHANGES):
        figures = {
            "score_vs_latency": draw_latency(comparison, styles),
            "chunk": draw_sweeps(comparison, styles, ["chunk"], deciding),
            "demos": draw_sweeps(comparison, styles, ["demos"], comparison.columns),
            "robustness": draw_sweeps(comparison, styles, CONDITIONS, deciding),
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


def draw_sweeps(
    comparison: Comparison, styles: Styles, varied: Sequence[str], scores: Sequence[str]
) -> "Figure | None":
    """Draw one panel per varied setting and score; lines with intervals."""
    sweeps = {axis: comparison.sweep(axis) for axis in varied}
    panels = [(axis, score) for axis in varied if sweeps[axis] for score in scores]
    if not panels:
        return None
    figure, axes = make_figure(1, len(panels), (2.6 * len(panels) + 1.5, 2.5), sharey=len(scores) == 1)
    for panel, (axis, score) in zip(axes[0], panels, strict=True):
        _draw_sweep(panel, sweeps[axis], styles, axis, score)
        if panel is axes[0, 0] or len(scores) > 1:
            panel.set_ylabel(comparison.column_title(score))
    rows = [row for swept in sweeps.values() for along in swept.values() for row in along.values()]
    _add_legend(figure, {row.name: row for row in rows}, styles)
    return figure


def _draw_sweep(panel: "Axes", swept: Sweep, styles: Styles, axis: str, score: str) -> None:
    values = sorted({value for rows in swept.values() for value in rows})
    logarithmic = axis in ("chunk", "demos")
    if logarithmic:
        panel.set_xscale("log", base=2)
        panel.minorticks_off()
    span = np.log2(values[-1] / values[0]) if logarithmic else values[-1] - values[0]
    for i, (name, rows) in enumerate(swept.items()):
        style, shift = styles[name], 0.016 * span * (i - (len(swept) - 1) / 2)
        x = [value * 2**shift if logarithmic else value + shift for value in rows]
        y = [getattr(row, score).value for row in rows.values()]
        panel.plot(x, y, color=style.colour, linewidth=1.6 if style.bold else 1.0, zorder=3 + style.bold)
        for at, row in zip(x, rows.values(), strict=True):
            _draw_estimate(panel, at, getattr(row, score), style)
    panel.set_xticks(values, [f"{value:g}" for value in values])
    panel.set_xlabel(AXIS_LABELS[axis])
    panel.grid(axis="y", **GRID)


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
