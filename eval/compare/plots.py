"""A comparison in pictures: scores with intervals, what they cost, and how they bear variations.

Blue is the reference; every other row has a colour and a marker of its own, the same in all figures, and its
name beside it. Where there are more rows than colours, those of a method share one.
"""

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nsde_policy.eval.compare.result import ACTIONS, CONDITIONS, Comparison, Row
from nsde_policy.eval.render.plotting import STYLE, pyplot, save_figure
from nsde_policy.eval.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = "#0072B2"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's colours, which all colour visions tell apart, and a grey."""
MARKERS = "osD^vph<"
GRID = "#E6E6E6"
INK = "#333333"
SCORES: dict[str, Callable[[Row], Estimate]] = {
    "mean max reward": lambda row: row.reward,
    "strict success": lambda row: row.success,
}
AXIS_LABELS = {
    "chunk": "actions executed before planning again, $T_a$",
    "demos": "demonstrations",
    "latency_steps": "delay of plans, control periods",
    "obs_noise": "observation noise, std of one period's change",
    "push": "push of the block, px",
}


@dataclass(frozen=True)
class Look:
    """How a row is drawn."""

    colour: str
    marker: str
    bold: bool

    @property
    def ink(self) -> tuple[float, ...]:
        """Of its name: its colour, darker, for thin strokes on white."""
        return tuple(0.75 * int(self.colour[i : i + 2], 16) / 255 for i in (1, 3, 5))

    @property
    def weight(self) -> str:
        """Of its name."""
        return "bold" if self.bold else "normal"


def draw_all(comparison: Comparison, out: Path, *, reference: str | None = None) -> list[Path]:
    """Write what the entries hold, each figure as PNG and SVG; returns where."""
    plt = pyplot()
    looks = _looks(comparison, reference)
    with plt.rc_context(STYLE):
        made = {
            "scores": draw_scores(comparison, looks),
            "score_vs_calls": draw_costs(comparison, looks, "calls"),
            "score_vs_latency": draw_costs(comparison, looks, "latency"),
            "chunk": draw_sweeps(comparison, looks, ["chunk"], ["strict success"]),
            "demos": draw_sweeps(comparison, looks, ["demos"], list(SCORES)),
            "robustness": draw_sweeps(comparison, looks, CONDITIONS, ["strict success"]),
        }
        drawn = {name: figure for name, figure in made.items() if figure is not None}
        written = [path for name, figure in drawn.items() for path in save_figure(figure, out, name)]
    for figure in drawn.values():
        plt.close(figure)
    return written


def draw_scores(comparison: Comparison, looks: dict[str, Look]) -> "Figure | None":
    """One line per row, the most successful on top: both scores with their 95 % intervals."""
    rows = comparison.main_rows()[::-1]
    if not rows:
        return None
    figure, axes = _figure(1, 2, (6.6, 0.62 + 0.24 * len(rows)), sharey=True)
    for axis, (title, score) in zip(axes[0], SCORES.items(), strict=True):
        for y, row in enumerate(rows):
            _point(axis, y, score(row), looks[row.name], horizontal=True)
        axis.grid(axis="x", color=GRID, linewidth=0.6)
        axis.set_xlabel(title)
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", length=0)
        _score_limits(axis.set_xlim, [score(row) for row in rows])
    axes[0, 0].set_yticks(range(len(rows)), [row.label for row in rows])
    for text, row in zip(axes[0, 0].get_yticklabels(), rows, strict=True):
        text.set_fontweight(looks[row.name].weight)
    return figure


def draw_costs(comparison: Comparison, looks: dict[str, Look], cost: str) -> "Figure | None":
    """Both scores against what eight actions cost: network calls, or milliseconds."""
    known = [(row, _cost(row, cost)) for row in comparison.main_rows()]
    points = [(row, value) for row, value in known if value]
    if len(points) < 2:
        return None
    figure, axes = _figure(2, 1, (6.2, 5.0), sharex=True)
    low, high = min(value for _, value in points), max(value for _, value in points)
    for axis, (title, score) in zip(axes[:, 0], SCORES.items(), strict=True):
        for row, value in points:
            _point(axis, value, score(row), looks[row.name], horizontal=False, faint=True)
        axis.set_xscale("log")
        axis.set_xlim(low / 1.5, high * 1.5)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.minorticks_off()
        axis.set_ylabel(title)
        axis.grid(color=GRID, linewidth=0.6)
        _score_limits(axis.set_ylim, [score(row) for row, _ in points])
    what = {"calls": f"network calls for {ACTIONS} actions", "latency": f"latency of {ACTIONS} actions, ms"}
    left_out = [row.label for row, value in known if not value]
    note = f"without {', '.join(left_out)}: {'no calls' if cost == 'calls' else 'not measured'}"
    axes[1, 0].set_xlabel("\n".join([what[cost], *textwrap.wrap(note, 90)] if left_out else [what[cost]]))
    _settle(figure)
    for axis, score in zip(axes[:, 0], SCORES.values(), strict=True):
        _name_points(axis, [(row, value, score(row)) for row, value in points], looks)
    return figure


def draw_sweeps(
    comparison: Comparison, looks: dict[str, Look], axes_wanted: Sequence[str], scores: Sequence[str]
) -> "Figure | None":
    """One panel per thing that was varied and score; lines with intervals, named at their ends."""
    panels = [(axis, score) for axis in axes_wanted if comparison.sweep(axis) for score in scores]
    if not panels:
        return None
    figure, axes = _figure(1, len(panels), (3.0 * len(panels) + 0.3, 2.5), sharey=len(scores) == 1)
    for panel, (varied, score) in zip(axes[0], panels, strict=True):
        _sweep(panel, comparison.sweep(varied), looks, varied, SCORES[score])
        if panel is axes[0, 0] or len(scores) > 1:
            panel.set_ylabel(score)
    for score in scores:
        shown = [comparison.sweep(varied) for varied, drawn in panels if drawn == score]
        estimates = [
            SCORES[score](row) for found in shown for along in found.values() for row in along.values()
        ]
        _score_limits(axes[0, [drawn for _, drawn in panels].index(score)].set_ylim, estimates)
    figure.canvas.draw()
    for panel, (varied, score) in zip(axes[0], panels, strict=True):
        _name_lines(panel, comparison.sweep(varied), looks, SCORES[score])
    return figure


def _sweep(
    panel: "Axes",
    found: dict[str, dict[float, Row]],
    looks: dict[str, Look],
    varied: str,
    score: Callable[[Row], Estimate],
) -> None:
    values = sorted({value for along in found.values() for value in along})
    doubling = varied in ("chunk", "demos")
    if doubling:
        panel.set_xscale("log", base=2)
        panel.minorticks_off()
    span = np.log2(values[-1] / values[0]) if doubling else values[-1] - values[0]
    for i, (name, along) in enumerate(found.items()):
        look, shift = looks[name], 0.016 * span * (i - (len(found) - 1) / 2)
        x = [value * 2**shift if doubling else value + shift for value in along]
        y = [score(row).value for row in along.values()]
        panel.plot(x, y, color=look.colour, linewidth=1.6 if look.bold else 1.0, zorder=3 + look.bold)
        for at, row in zip(x, along.values(), strict=True):
            _point(panel, at, score(row), look, horizontal=False, faint=True)
    panel.set_xticks(values, [f"{value:g}" for value in values])
    panel.set_xlabel(AXIS_LABELS[varied])
    panel.grid(axis="y", color=GRID, linewidth=0.6)


def _looks(comparison: Comparison, reference: str | None) -> dict[str, Look]:
    names = comparison.names
    ours = comparison.reference(reference).name if comparison.main_rows() else names[0]
    looks = {ours: Look(REFERENCE, MARKERS[0], True)}
    crowded = len(names) > 1 + len(OTHERS)
    kinds = {entry.name: entry.method if crowded else entry.name for entry in comparison.entries}
    others = [kind for kind in dict.fromkeys(kinds.values()) if kind != kinds[ours]]
    colours = {kinds[ours]: REFERENCE, **dict(zip(others, itertools.cycle(OTHERS), strict=False))}
    used: Counter[str] = Counter({REFERENCE: 1})
    for name in (name for name in names if name != ours):
        colour = colours[kinds[name]]
        marker = MARKERS[((REFERENCE, *OTHERS).index(colour) + used[colour]) % len(MARKERS)]
        looks[name] = Look(colour, marker, False)
        used[colour] += 1
    return looks


def _figure(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> "tuple[Figure, np.ndarray]":
    figure: Figure
    axes: np.ndarray
    figure, axes = pyplot().subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, **options
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=2, pad=2, labelsize=7, colors=INK)
        axis.set_axisbelow(True)
    return figure, axes


def _settle(figure: "Figure") -> None:
    """Lay the figure out once and for all, so that names can be put where there is room."""
    figure.canvas.draw()
    figure.set_layout_engine("none")


def _point(
    axis: "Axes", at: float, score: Estimate, look: Look, *, horizontal: bool, faint: bool = False
) -> None:
    """A mark at the score and a line over its interval, faint where many would lie close."""
    interval: dict[str, Any] = {
        "color": look.colour,
        "linewidth": 1.0 + 0.4 * look.bold,
        "alpha": 0.45 if faint else 1.0,
    }
    ends, here = [score.low, score.high], [at, at]
    axis.plot(*((ends, here) if horizontal else (here, ends)), **interval, zorder=3 + look.bold)
    axis.plot(
        *((score.value, at) if horizontal else (at, score.value)),
        marker=look.marker,
        color=look.colour,
        markersize=4.8 + 0.6 * look.bold,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=5 + look.bold,
    )


def _score_limits(set_limits: Callable[[float, float], Any], scores: Sequence[Estimate]) -> None:
    """As close as the intervals allow, a little air around; never far beyond what a score can be."""
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    air = 0.06 * max(high - low, 0.1)
    set_limits(max(low - air, -0.02), min(high + air, 1.02))


def _cost(row: Row, cost: str) -> float | None:
    if cost == "calls":
        return row.calls
    return None if row.latency is None else row.latency.median


class _Box(NamedTuple):
    """A rectangle in points."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "_Box") -> float:
        """Area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def outside(self, other: "_Box") -> float:
        """Area that does not lie within the other."""
        return (self.right - self.left) * (self.top - self.bottom) - self.overlap(other)


def _name_points(axis: "Axes", points: Sequence[tuple[Row, float, Estimate]], looks: dict[str, Look]) -> None:
    """Write each row's name where it covers neither marks nor intervals nor other names."""
    points_per_pixel = 72 / axis.figure.dpi

    def place(x: float, y: float) -> np.ndarray:
        at: np.ndarray = axis.transData.transform((x, y)) * points_per_pixel
        return at

    taken: list[_Box] = []
    for _, x, score in points:
        (left, middle), bottom, top = place(x, score.value), place(x, score.low)[1], place(x, score.high)[1]
        taken.append(_Box(left - 3, middle - 3, left + 3, middle + 3))
        taken.append(_Box(left - 1.5, bottom, left + 1.5, top))
    room = _Box(*(np.array(axis.get_window_extent().extents) * points_per_pixel))
    for row, x, score in points:
        look = looks[row.name]
        text = axis.annotate(
            row.label,
            (x, score.value),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=6.5,
            color=look.ink,
            fontweight=look.weight,
            zorder=6,
        )
        extent = text.get_window_extent()
        offset, box = _free_place(
            place(x, score.value),
            (extent.width * points_per_pixel, extent.height * points_per_pixel),
            taken,
            room,
        )
        text.set_position(offset)
        text.set_in_layout(False)
        taken.append(box)


def _free_place(
    at: np.ndarray, size: tuple[float, float], taken: Sequence[_Box], room: _Box
) -> tuple[tuple[float, float], _Box]:
    """Offset of a name from its mark, and the box it fills: the nearest that covers nothing, right first."""
    width, height = size
    best: tuple[float, tuple[float, float], _Box] | None = None
    for lift in (0.0, 0.4, -0.4, 0.8, -0.8, 1.2, -1.2, 1.6, -1.6, 2.0, -2.0, 2.5, -2.5):
        for away, dx in enumerate((5.5, -6.5 - width, -width / 2)):
            if away == 2 and abs(lift) < 0.8:
                continue
            dy = (lift - 0.5) * height + 0.15 * height
            box = _Box(at[0] + dx, at[1] + dy, at[0] + dx + width, at[1] + dy + height)
            covered = 5 * sum(box.overlap(other) for other in taken) + 25 * box.outside(room)
            penalty = covered + height * (abs(lift) + 0.3 * away)
            if best is None or penalty < best[0]:
                best = (penalty, (dx, dy), box)
    assert best is not None
    return best[1], best[2]


def _name_lines(
    panel: "Axes",
    found: dict[str, dict[float, Row]],
    looks: dict[str, Look],
    score: Callable[[Row], Estimate],
) -> None:
    """Write each row's name right of the end of its line, names kept apart."""
    low, high = panel.get_ylim()
    ends = {name: list(along.values())[-1] for name, along in found.items()}
    labels = {name: row.label.replace(", ", ",\n") for name, row in ends.items()}
    line = 9 / (panel.get_window_extent().height * 72 / panel.figure.dpi)
    heights = [line * (1 + label.count("\n")) for label in labels.values()]
    wanted = [(score(row).value - low) / (high - low) for row in ends.values()]
    for name, y in zip(ends, _apart(wanted, heights), strict=True):
        panel.text(
            1.03,
            y,
            labels[name],
            transform=panel.transAxes,
            va="center",
            fontsize=6.5,
            linespacing=1.0,
            color=looks[name].ink,
            fontweight=looks[name].weight,
        )


def _apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Middles of boxes in [0, 1], in the order wanted and close to it, that do not overlap."""
    order = np.argsort(wanted, kind="stable")
    y = np.asarray(wanted, dtype=float)
    for _ in range(200):
        for below, above in itertools.pairwise(order):
            short = (heights[below] + heights[above]) / 2 - (y[above] - y[below])
            if short > 0:
                y[below] -= short / 2
                y[above] += short / 2
    return [float(value) for value in y]
