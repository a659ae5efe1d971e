"""Figures of the experiment: generated trajectories by method and density, and an ablation."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from nsde_policy.eval.bifurcation.data import Bifurcation
from nsde_policy.eval.bifurcation.experiment import FORK, WHOLE_PLANE, View
from nsde_policy.eval.bifurcation.methods import ABLATION, METHOD_NAMES, NEURAL_SDE, VectorField
from nsde_policy.eval.bifurcation.results import COMPLETE, ExperimentResults
from nsde_policy.eval.bifurcation.scores import thin_paths
from nsde_policy.eval.render.plotting import make_figure, plot_style, save_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UPPER, LOWER, TRUTH, ARROW = "#0072B2", "#D55E00", "#000000", "#4D4D4D"
"""Okabe and Ito's blue and vermilion, safe for colour-blind readers; true paths in black."""
DRAWN_PATHS = 20
"""Number of paths per panel."""
DRAWN_METHODS = tuple(name for name in METHOD_NAMES if not name.startswith("Neural SDE, "))
"""Methods with a column in the figure."""


def draw_experiment(results: ExperimentResults, out: Path) -> list[Path]:
    """Write both figures as PNG and SVG; return their paths."""
    with plot_style():
        return save_figures(
            {"trajectories": draw_trajectories(results), "ablation": draw_ablation(results)}, out
        )


def draw_trajectories(results: ExperimentResults) -> "Figure":
    """Draw one row per density, one column per method; the true trajectories are dashed."""
    densities = results.settings.densities
    size = (1.75 * len(DRAWN_METHODS), 1.3 * len(densities) + 0.55)
    figure, axes = make_figure(
        len(densities), len(DRAWN_METHODS), size, layout=None, sharex=True, sharey=True
    )
    for row, density in zip(axes, densities, strict=True):
        for axis, method in zip(row, DRAWN_METHODS, strict=True):
            label = COMPLETE if method == NEURAL_SDE else method
            _draw_paths(axis, results.paths[label, density], density, WHOLE_PLANE, width=0.6)
            _draw_caption(axis, _format_shares(results, method, density))
        row[0].set_ylabel(f"density {density}\n{Bifurcation(density).points} points")
    for axis, method in zip(axes[0], DRAWN_METHODS, strict=True):
        axis.set_title(method.replace(", ", "\n"), fontweight="bold" if method == NEURAL_SDE else "normal")
    figure.tight_layout(pad=0.4, w_pad=0.3, h_pad=0.4)
    return figure


def draw_ablation(results: ExperimentResults) -> "Figure":
    """Draw one column per set of terms, the whole plane above, the fork below: drift arrows and paths."""
    density = max(results.settings.densities)
    figure, axes = make_figure(2, len(ABLATION), (2.55 * len(ABLATION), 3.9), sharex="row", sharey="row")
    for row, (view, stride, width) in zip(axes, ((WHOLE_PLANE, 6, 0.7), (FORK, 5, 0.8)), strict=True):
        for axis, (label, (denoiser, diffusion)) in zip(row, ABLATION.items(), strict=True):
            field = results.fields[view, density]
            _draw_arrows(axis, field, stride, denoiser=denoiser)
            _draw_paths(axis, results.paths[label, density], density, view, width=width)
            if diffusion and view == FORK:
                g = field.diffusion[..., 1]
                _draw_caption(axis, f"g in y: {g.min():.3f} to {g.max():.3f}")
    for axis, label in zip(axes[0], ABLATION, strict=True):
        axis.set_title(label, fontweight="bold" if label == COMPLETE else "normal")
        _draw_caption(axis, _format_shares(results, label, density))
    axes[1, 0].set_xticks([4.0, 4.5, 5.0, 5.5])
    axes[0, 0].set_ylabel(f"density {density}")
    axes[1, 0].set_ylabel("the fork, magnified")
    return figure


def _draw_arrows(axis: "Axes", field: VectorField, stride: int, *, denoiser: bool) -> None:
    """Draw the drift, f or f + α d, its length cut at 1.5: far from the data it is very large."""
    start = stride // 2
    x = field.x[start::stride, start::stride].numpy()
    drift = field.flow + field.denoiser if denoiser else field.flow
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


def _draw_paths(axis: "Axes", paths: Tensor, density: int, view: View, *, width: float) -> None:
    """Draw the visible part of paths (points, n, 2), coloured by the side they end on, and the true ones."""
    left, right, bottom, top = view
    margin = 0.1 * (right - left)
    paths = thin_paths(paths) if view == WHOLE_PLANE else paths
    for path in paths[:, :DRAWN_PATHS].unbind(1):
        colour = UPPER if path[-1, 1] > 0 else LOWER
        inside = (path[:, 0] > left - margin) & (path[:, 0] < right + margin)
        x, y = path[inside].numpy().T
        axis.plot(x, y, color=colour, linewidth=width, alpha=0.5, solid_capstyle="round", zorder=2)
    for path in Bifurcation(density).trajectories().unbind(1):
        x, y = path.numpy().T
        axis.plot(x, y, color=TRUTH, linewidth=0.7, linestyle=(0, (3, 3)), zorder=3)
    axis.set(xlim=(left, right), ylim=(bottom, top))


def _format_shares(results: ExperimentResults, label: str, density: int) -> str:
    upper, lower, off = (
        100 * results.over_seeds(label, density, name).value for name in ("upper", "lower", "off_branch")
    )
    return f"up {upper:.0f}  down {lower:.0f}  off {off:.0f} %"


def _draw_caption(axis: "Axes", text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axis.text(0.03, 0.04, text, transform=axis.transAxes, fontsize=6.5, va="bottom", bbox=box, zorder=4)
