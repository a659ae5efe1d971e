"""Picture of where the episodes of every row went, by mode."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from ..render.plotting import encode_figure, make_figure, plot_style, pyplot
from .result import Comparison
from .row import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS_PER_LINE = 5
PANEL_WIDTH = 2.1  # inches
LONGEST_TITLE = 38
"""Characters of a line of a panel's title."""
FAILED = "#9a9a9a"
UNKNOWN = "#000000"
"""Colour of a successful episode whose mode is unknown."""


def draw_paths(comparison: Comparison) -> bytes | None:
    """Draw the paths of every row as PNG; None if the task does not say what to draw."""
    rows = [row for row in comparison.rows if all(each.paths is not None for each in row.trainings)]
    if not rows:
        return None
    limits = _find_limits(comparison, rows)
    width, height = limits[1] - limits[0]
    panel = PANEL_WIDTH * float(np.clip(height / width, 0.4, 2.0))
    lines = -(-len(rows) // PANELS_PER_LINE)
    columns = -(-len(rows) // lines)
    size = (0.2 + columns * (PANEL_WIDTH + 0.15), lines * (panel + 0.75))
    with plot_style():
        figure, axes = make_figure(lines, columns, size)
        for axis in axes.flat[len(rows) :]:
            axis.set_visible(False)
        for axis, row in zip(axes.flat, rows, strict=False):
            _draw_row(axis, row, comparison, limits)
        content = encode_figure(figure, "png")
        pyplot().close(figure)
    return content


def _find_limits(comparison: Comparison, rows: list[Row]) -> np.ndarray:
    """Return the smallest and largest coordinates that are drawn, (2, 2), with a margin."""
    packed = [episodes.paths for row in rows for episodes in row.trainings]
    corners = [corner for paths in packed if paths is not None for corner in (paths.low, paths.high)]
    for x, y, radius in comparison.task_info.drawing.obstacles:
        corners += [(x - radius, y - radius), (x + radius, y + radius)]
    low, high = np.min(corners, axis=0), np.max(corners, axis=0)
    margin = 0.04 * max(high - low)
    return np.stack([low - margin, high + margin])


def _draw_row(axis: "Axes", row: Row, comparison: Comparison, limits: np.ndarray) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle

    for x, y, radius in comparison.task_info.drawing.obstacles:
        axis.add_patch(Circle((x, y), radius, facecolor="#dcdcdc", edgecolor="#8a8a8a", linewidth=0.6))
    paths = np.concatenate([each.paths.unpack(len(each)) for each in row.trainings if each.paths is not None])
    success = np.concatenate([each.succeeded for each in row.trainings])
    mode = np.concatenate([each.mode or [-1] * len(each) for each in row.trainings])
    turbo, modes = pyplot().get_cmap("turbo"), row.first.episodes.modes  # from blue to red
    shades = [*(turbo(0.05 + 0.9 * k / max(modes - 1, 1)) for k in range(modes)), UNKNOWN]
    colours = [shades[k] if succeeded else FAILED for k, succeeded in zip(mode, success, strict=True)]
    order = np.argsort(success, kind="stable")  # failures below
    options = {"linewidths": 0.7, "alpha": 0.75, "rasterized": True}
    axis.add_collection(LineCollection(list(paths[order]), colors=[colours[i] for i in order], **options))
    ends = paths[~success, -1]
    axis.plot(*ends.T, "x", color="#333333", markersize=2.5, markeredgewidth=0.5, rasterized=True)
    axis.set_xlim(*limits[:, 0])
    axis.set_ylim(*limits[:, 1])
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set(visible=True, color="#d0d0d0")
    figures = [] if row.success is None else [f"success {row.success.value:.2f}"]
    figures += [f"entropy {row.entropy.value:.2f}"] if row.entropy else []
    axis.set_title("\n".join([*textwrap.wrap(row.label, LONGEST_TITLE), ", ".join(figures)]), fontsize=7)
