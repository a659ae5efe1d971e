"""Picture of where the episodes of every row went, coloured by mode."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.render.plotting import encode_figure, make_figure, plot_style, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LineColour = tuple[float, ...]
PANELS_PER_LINE = 5
PANEL_WIDTH = 2.1
"""Width of a panel, inches."""
LONGEST_TITLE = 38
"""Characters of a line of a panel's title."""
FEW_PATHS = 10
"""Up to this number, lines are wider."""
FAILED = "#9a9a9a"
UNKNOWN = "#000000"
"""LineColour of a successful episode whose mode is unknown."""


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


def choose_mode_colours(modes: int) -> list[LineColour]:
    """Return one colour per mode, from blue to red; neighbouring modes have similar ones."""
    turbo = pyplot().get_cmap("turbo")
    return [turbo(0.05 + 0.9 * mode / max(modes - 1, 1)) for mode in range(modes)]


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
    shades: list[LineColour | str] = [*choose_mode_colours(columns[0].modes), UNKNOWN]
    colours = [shades[mode[i]] if success[i] else FAILED for i in order]
    return paths[order], colours, ~success[order].astype(bool)


def _summarize(row: Row) -> str:
    """Say success, entropy and the number of distinct paths in one line."""
    count = row.distinct_paths
    parts = [] if row.success is None else [f"success {row.success.value:.2f}"]
    if row.diversity is not None:
        parts.append(f"entropy {row.entropy.value:.2f}" if row.entropy else "entropy –")
    return ", ".join([*parts, "1 path" if count == 1 else f"{count} paths"])
