"""The two figures: generated trajectories by method and density, and what each part of the equation does."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.experiment import CLOSE, DRAWN_METHODS, NEURAL_SDE, WIDE, View
from nsde_policy.eval.bifurcation.methods import ABLATION, Field
from nsde_policy.eval.bifurcation.report import WHOLE, Report
from nsde_policy.eval.bifurcation.scores import thin
from nsde_policy.eval.render.plotting import STYLE, pyplot, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UPPER, LOWER, TRUTH, ARROW = "#0072B2", "#D55E00", "#000000", "#4D4D4D"
"""Okabe and Ito's blue and vermilion, which all colour visions tell apart; true paths in black."""
DRAWN = 20
"""Paths per panel."""


def draw_all(report: Report, out: Path) -> list[Path]:
    """Write both figures as PNG and SVG; returns where."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        made = {"trajectories": draw_trajectories(report), "ablation": draw_ablation(report)}
        written = [path for name, figure in made.items() for path in save_figure(figure, out, name)]
    for figure in made.values():
        plt.close(figure)
    return written


def draw_trajectories(report: Report) -> "Figure":
    """One row per density, one column per method; the true trajectories lie dashed on top."""
    densities = report.settings.densities
    size = (1.75 * len(DRAWN_METHODS), 1.3 * len(densities) + 0.55)
    figure: Figure
    figure, axes = pyplot().subplots(
        len(densities), len(DRAWN_METHODS), figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for row, density in zip(axes, densities, strict=True):
        for axis, method in zip(row, DRAWN_METHODS, strict=True):
            label = WHOLE if method == NEURAL_SDE else method
            _paths(axis, report.paths[label, density], WIDE, width=0.6)
            _truth(axis, density)
            _caption(axis, _summary(report, method, density))
            _frame(axis, WIDE)
        row[0].set_ylabel(f"density {density}\n{Bifurcation(density).points} points")
    for axis, method in zip(axes[0], DRAWN_METHODS, strict=True):
        axis.set_title(method.replace(", ", "\n"), fontweight="bold" if method == NEURAL_SDE else "normal")
    figure.tight_layout(pad=0.4, w_pad=0.3, h_pad=0.4)
    return figure


def draw_ablation(report: Report) -> "Figure":
    """One column per set of parts, the whole plane above, the fork below: arrows of the drift, and paths."""
    density = max(report.settings.densities)
    views = {"wide": (WIDE, 6, 0.7), "close": (CLOSE, 5, 0.8)}
    figure: Figure
    figure, axes = pyplot().subplots(
        2,
        len(ABLATION),
        figsize=(2.55 * len(ABLATION), 3.9),
        sharex="row",
        sharey="row",
        layout="constrained",
    )
    for row, (view, (limits, stride, width)) in zip(axes, views.items(), strict=True):
        for axis, (label, (denoiser, diffusion)) in zip(row, ABLATION.items(), strict=True):
            field = report.fields[view, density]
            _arrows(axis, field, stride, denoiser=denoiser)
            _paths(axis, report.paths[label, density], limits, width=width)
            _truth(axis, density)
            _frame(axis, limits)
            if diffusion and view == "close":
                g = field.diffusion[..., 1]
                _caption(axis, f"g in y: {g.min():.3f} to {g.max():.3f}")
    for axis, label in zip(axes[0], ABLATION, strict=True):
        axis.set_title(label, fontweight="bold" if label == WHOLE else "normal")
        _caption(axis, _summary(report, label, density))
    axes[1, 0].set_xticks([4.0, 4.5, 5.0, 5.5])
    axes[0, 0].set_ylabel(f"density {density}")
    axes[1, 0].set_ylabel("the fork, magnified")
    return figure


def _arrows(axis: "Axes", field: Field, stride: int, *, denoiser: bool) -> None:
    """The drift, f or f + α d, its size cut at 1.5, so that states far from the data do not shout."""
    start = stride // 2
    x = field.x[start::stride, start::stride].numpy()
    drift = field.flow + field.pull if denoiser else field.flow
    v = drift[start::stride, start::stride].numpy()
    speed = np.linalg.norm(v, axis=-1, keepdims=True)
    v = v / np.maximum(speed, 1e-9) * np.minimum(speed, 1.5)
    axis.quiver(
        *x.transpose(2, 0, 1),
        *v.transpose(2, 0, 1),
        color=ARROW,
        alpha=0.55,
        angles="xy",
        pivot="mid",
        scale=24,
        width=0.004,
        headwidth=4,
        headlength=4.5,
        headaxislength=4,
        zorder=1,
    )


def _paths(axis: "Axes", paths: Tensor, view: View, *, width: float) -> None:
    """Paths (points, n, 2), coloured by the side they end on; only what the view shows is drawn."""
    left, right, *_ = view
    shown = thin(paths) if view == WIDE else paths
    for path in shown[:, :DRAWN].unbind(1):
        colour = UPPER if path[-1, 1] > 0 else LOWER
        margin = 0.1 * (right - left)
        inside = (path[:, 0] > left - margin) & (path[:, 0] < right + margin)
        x, y = path[inside].numpy().T
        axis.plot(x, y, color=colour, linewidth=width, alpha=0.5, solid_capstyle="round", zorder=2)


def _truth(axis: "Axes", density: int) -> None:
    for path in Bifurcation(density).trajectories().unbind(1):
        x, y = path.numpy().T
        axis.plot(x, y, color=TRUTH, linewidth=0.7, linestyle=(0, (3, 3)), zorder=3)


def _summary(report: Report, label: str, density: int) -> str:
    upper, lower, off = (
        100 * report.over_seeds(label, density, name).value for name in ("upper", "lower", "off_branch")
    )
    return f"up {upper:.0f}  down {lower:.0f}  off {off:.0f} %"


def _caption(axis: "Axes", text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axis.text(0.03, 0.04, text, transform=axis.transAxes, fontsize=6.5, va="bottom", bbox=box, zorder=4)


def _frame(axis: "Axes", limits: View) -> None:
    axis.set_xlim(limits[0], limits[1])
    axis.set_ylim(limits[2], limits[3])
    axis.tick_params(length=2, pad=2, labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
