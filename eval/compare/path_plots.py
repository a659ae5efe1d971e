"""Picture of where the episodes of every row went, coloured by mode, with shares of the modes below."""

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.render.plotting import encode_figure, make_figure, plot_style, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS_PER_LINE = 5
PANEL_WIDTH = 2.1
"""Width of a panel, inches."""
BARS_HEIGHT = 0.6
"""Height of the bars of modes, inches."""
TALLEST_BAR = 6.0
"""Largest end of the scale of the bars, times the share of evenly taken modes; the label of a taller bar is
its share."""
LABEL_LINE = 8
"""Distance of labels of bars that are cut off, points."""
LONGEST_TITLE = 38
"""Characters of a line of a panel's title."""
FEW_PATHS = 10
"""Up to this number, lines are wider."""
FAILED = "#9a9a9a"
UNKNOWN = "#000000"
"""Colour of a successful episode whose mode is unknown."""


def draw_paths(comparison: Comparison) -> "Figure | None":
    """Draw the paths of every main row; None if the task does not say what to draw.

    Every distinct path is drawn once.
    """
    rows = [
        row
        for row in comparison.mode_rows() or comparison.main_rows()
        if all(entry.episodes.paths is not None for entry in row.entries)
    ]
    if not rows:
        return None
    ends = np.array([[e.episodes.paths.low, e.episodes.paths.high] for row in rows for e in row.entries])  # type: ignore[union-attr]
    low, high = ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)
    for *centre, radius in comparison.task_info.drawing.obstacles:
        low, high = np.minimum(low, np.subtract(centre, radius)), np.maximum(high, np.add(centre, radius))
    margin = 0.04 * max(high - low)
    limits = np.stack([low - margin, high + margin])
    width, height = limits[1] - limits[0]
    panel = PANEL_WIDTH * float(np.clip(height / width, 0.4, 2.0))
    shares = [_measure_shares(row) for row in rows] if comparison.mode_rows() else []
    lines = -(-len(rows) // PANELS_PER_LINE)
    columns = -(-len(rows) // lines)
    heights = [panel, BARS_HEIGHT] if shares else [panel]
    size = (0.2 + columns * (PANEL_WIDTH + 0.15), lines * (sum(heights) + 0.75))
    figure, axes = make_figure(lines * len(heights), columns, size, height_ratios=heights * lines)
    for axis in axes.flat:
        axis.set_visible(False)
    for i, row in enumerate(rows):
        top, column = len(heights) * (i // columns), i % columns
        _draw_row(axes[top, column], row, comparison, limits)
        if shares:
            _draw_bars(axes[top + 1, column], shares[i], top=_choose_top(shares))
    return figure


def render_paths(comparison: Comparison) -> bytes | None:
    """Return the picture of `draw_paths` as PNG."""
    with plot_style():
        figure = draw_paths(comparison)
        if figure is None:
            return None
        content = encode_figure(figure, "png")
        pyplot().close(figure)
    return content


def choose_mode_colours(modes: int) -> list[Any]:
    """Return one colour per mode, from blue to red; neighbouring modes have similar ones."""
    turbo = pyplot().get_cmap("turbo")
    return [turbo(0.05 + 0.9 * mode / max(modes - 1, 1)) for mode in range(modes)]


def _draw_row(axis: "Axes", row: Row, comparison: Comparison, limits: np.ndarray) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Circle

    axis.set_visible(True)
    for x, y, radius in comparison.task_info.drawing.obstacles:
        axis.add_patch(Circle((x, y), radius, facecolor="#dcdcdc", edgecolor="#8a8a8a", linewidth=0.6))
    paths, colours, failed = _list_lines(row)
    width = 1.6 if len(paths) <= FEW_PATHS else 0.7
    options: dict[str, Any] = {"linewidths": width, "alpha": 0.75, "rasterized": True}
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


def _list_lines(row: Row) -> tuple[np.ndarray, list[Any], np.ndarray]:
    """Return distinct paths, failures first, with their colours, and which of them failed."""
    _, first = np.unique(row.path_numbers, return_index=True)
    columns = [entry.episodes for entry in row.entries]
    paths = np.concatenate([each.unpack_paths() for each in columns])[first]
    success = np.concatenate([each.success or [True] * len(each) for each in columns])[first]
    mode = np.concatenate([each.mode or [-1] * len(each) for each in columns])[first]
    order = np.argsort(success, kind="stable")
    shades = [*choose_mode_colours(columns[0].modes), UNKNOWN]
    colours = [shades[mode[i]] if success[i] else FAILED for i in order]
    return paths[order], colours, ~success[order].astype(bool)


def _summarize(row: Row) -> str:
    """Say success, entropy and the number of distinct paths in one line."""
    count = row.distinct_paths
    parts = [] if row.success is None else [f"success {row.success.value:.2f}"]
    if row.diversity is not None:
        parts.append(f"entropy {row.entropy.value:.2f}" if row.entropy else "entropy –")
    return ", ".join([*parts, "1 path" if count == 1 else f"{count} paths"])


def _measure_shares(row: Row) -> np.ndarray:
    """Return the share of each mode among the successes of all trainings; all 0 without successes."""
    counts = np.sum([each.counts for each in row.outcomes], axis=0)
    shares: np.ndarray = counts / max(counts.sum(), 1)
    return shares


def _choose_top(shares: list[np.ndarray]) -> float:
    """Return the end of the scale that all bars share."""
    even = 1 / len(shares[0])
    return min(max(float(np.max(shares)), 2 * even), TALLEST_BAR * even, 1.0)


def _draw_bars(axis: "Axes", shares: np.ndarray, *, top: float) -> None:
    """Draw the share of each mode among the successes; a dotted line marks evenly taken modes."""
    modes = len(shares)
    axis.set_visible(True)
    axis.bar(range(modes), shares, width=0.9, color=choose_mode_colours(modes))
    axis.axhline(1 / modes, color="#333333", linestyle=":", linewidth=0.8)
    tall = np.flatnonzero(shares > top).tolist()
    for line, mode in enumerate(tall):
        end = next(other for other in range(mode, modes + 1) if other not in tall)  # right of the run
        label, below = f"{100 * shares[mode]:.0f} %", (0, -LABEL_LINE * line)
        axis.annotate(label, (end - 0.3, top), below, textcoords="offset points", va="top", fontsize=6)
    axis.set_xlim(-0.7, modes - 0.3)
    axis.set_xticks([0, modes - 1])
    axis.set_ylim(0, top)
    axis.set_yticks([0, top], ["0", f"{100 * top:.0f} %"])
    axis.set_xlabel("mode", fontsize=7, labelpad=-6)
