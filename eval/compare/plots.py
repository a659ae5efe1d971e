"""Plots of a comparison: scores against latency, and where the episodes of every row went, by mode."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..render.plotting import encode_figure, make_figure, plot_style, pyplot, save_figures
from ..statistics import Estimate
from .result import ACTIONS, Comparison
from .row import Row

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
LineColour = tuple[float, ...]
PANELS_PER_LINE = 5
PANEL_WIDTH = 2.1  # inches
LONGEST_TITLE = 38
"""Characters of a line of a panel's title."""
FEW_PATHS = 10
"""Up to this number, lines are wider."""
FAILED = "#9a9a9a"
UNKNOWN = "#000000"
"""LineColour of a successful episode whose mode is unknown."""


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
    reference_row, scores = comparison.reference(reference), comparison.columns
    figure, axes = make_figure(len(scores), 1, (6.8, 0.6 + 2.2 * len(scores)), sharex=True)
    for axis, score in zip(axes[:, 0], scores, strict=True):
        for i, (row, latency) in enumerate(points):
            colour, marker = ROW_COLOURS[i % len(ROW_COLOURS)], MARKERS[i % len(MARKERS)]
            if row is reference_row:
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
        text.set_fontweight("bold" if row is reference_row else "normal")
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


def draw_paths(comparison: Comparison) -> "Figure | None":
    """Draw the paths of every main row; None if the task does not say what to draw.

    Every distinct path is drawn once.
    """
    rows = [
        row
        for row in comparison.main_rows()
        if all(entry.episodes.paths is not None for entry in row.entries)
    ]
    if not rows:
        return None
    limits = _find_limits(comparison, rows)
    width, height = limits[1] - limits[0]
    panel = PANEL_WIDTH * float(np.clip(height / width, 0.4, 2.0))
    lines = -(-len(rows) // PANELS_PER_LINE)
    columns = -(-len(rows) // lines)
    size = (0.2 + columns * (PANEL_WIDTH + 0.15), lines * (panel + 0.75))
    figure, axes = make_figure(lines, columns, size)
    for axis in axes.flat[len(rows) :]:
        axis.set_visible(False)
    for axis, row in zip(axes.flat, rows, strict=False):
        _draw_row(axis, row, comparison, limits)
    return figure


def _find_limits(comparison: Comparison, rows: list[Row]) -> np.ndarray:
    """Return the smallest and largest coordinates that are drawn, (2, 2), with a margin."""
    packed = [entry.episodes.paths for row in rows for entry in row.entries]
    corners = [corner for paths in packed if paths is not None for corner in (paths.low, paths.high)]
    for x, y, radius in comparison.task_info.drawing.obstacles:
        corners += [(x - radius, y - radius), (x + radius, y + radius)]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    margin = 0.04 * max(high - low)
    return np.stack([low - margin, high + margin])


def render_paths(comparison: Comparison) -> bytes | None:
    """Return the picture of `draw_paths` as PNG."""
    with plot_style():
        figure = draw_paths(comparison)
        if figure is None:
            return None
        content = encode_figure(figure, "png")
        pyplot().close(figure)
    return content


def _draw_row(axis: "Axes", row: Row, comparison: Comparison, limits: np.ndarray) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle

    for x, y, radius in comparison.task_info.drawing.obstacles:
        axis.add_patch(Circle((x, y), radius, facecolor="#dcdcdc", edgecolor="#8a8a8a", linewidth=0.6))
    paths, colours, failed = _list_lines(row)
    width = 1.6 if len(paths) <= FEW_PATHS else 0.7
    options = {"linewidths": width, "alpha": 0.75, "rasterized": True}
    axis.add_collection(LineCollection(list(paths), colors=colours, **options))
    last = paths[failed, -1]
    axis.plot(*last.T, "x", color="#333333", markersize=2.5, markeredgewidth=0.5, rasterized=True)
    axis.set_xlim(*limits[:, 0])
    axis.set_ylim(*limits[:, 1])
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set(visible=True, color="#d0d0d0")
    axis.set_title("\n".join([*textwrap.wrap(row.label, LONGEST_TITLE), _summarize(row)]), fontsize=7)


def _list_lines(row: Row) -> tuple[np.ndarray, list[LineColour | str], np.ndarray]:
    """Return distinct paths, failures first, with their colours, and which of them failed."""
    _, first = np.unique(row.path_numbers, return_index=True)
    columns = [entry.episodes for entry in row.entries]
    paths = np.concatenate([each.unpack_paths() for each in columns])[first]
    success = np.concatenate([each.success or [True] * len(each) for each in columns])[first]
    mode = np.concatenate([each.mode or [-1] * len(each) for each in columns])[first]
    order = np.argsort(success, kind="stable")
    turbo, modes = pyplot().get_cmap("turbo"), columns[0].modes  # from blue to red
    shades: list[LineColour | str] = [turbo(0.05 + 0.9 * k / max(modes - 1, 1)) for k in range(modes)]
    shades.append(UNKNOWN)
    colours = [shades[mode[i]] if success[i] else FAILED for i in order]
    return paths[order], colours, ~success[order].astype(bool)


def _summarize(row: Row) -> str:
    """Say success, entropy and the number of distinct paths in one line."""
    count = row.distinct_paths
    parts = [] if row.success is None else [f"success {row.success.value:.2f}"]
    if row.product is not None:
        parts.append(f"entropy {row.entropy.value:.2f}" if row.entropy else "entropy –")
    return ", ".join([*parts, "1 path" if count == 1 else f"{count} paths"])
