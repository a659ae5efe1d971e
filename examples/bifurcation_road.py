"""The road of bifurcation.py: its data, scores of paths along it, a table and figures."""

import math
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from plotting import encode_figure, make_figure, plot_style
from torch import Tensor

from nsde_policy.eval.statistics import Estimate, mean, proportion
from nsde_policy.eval.tables import format_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- The data ------------------------------------------------------------------------------------------
# The paper gives neither speed nor duration. Here the speed is 1, and the fork is one of the points.

FORK_TIME = 4.5  # and the x of the fork, which lies on y = 0
ANGLE = math.radians(30)
DURATION = 10.0


@dataclass(frozen=True)
class Road:
    """Two demonstrations of 100 · density points each: density 1 or 10 in the paper."""

    density: int

    @property
    def steps(self) -> int:
        """Transitions per demonstration."""
        return 100 * self.density - 1

    @property
    def dt(self) -> float:
        """Time between two points."""
        return DURATION / (100 * self.density)

    @property
    def length(self) -> float:
        """Length of a demonstration."""
        return self.dt * self.steps

    def paths(self) -> Tensor:
        """Return both demonstrations, the upper one first, (points, 2, 2)."""
        t = torch.arange(100 * self.density, dtype=torch.float64) * self.dt
        straight, turned = t.clamp(max=FORK_TIME), (t - FORK_TIME).clamp(min=0)
        x, y = straight + turned * math.cos(ANGLE), turned * math.sin(ANGLE)
        return torch.stack([torch.stack([x, y], -1), torch.stack([x, -y], -1)], dim=1).float()


# --- The scores, each with a 95 % interval over the generated paths --------------------------------------

ON_BRANCH = 0.02
"""A path follows a branch if its Hausdorff distance to it is below this fraction of the length."""
RESAMPLES = 200


def score_paths(paths: Tensor, road: Road, generator: torch.Generator) -> dict[str, Any]:
    """Score paths; fork errors are fractions of the length, the energy distance is in units of the plane."""
    paths = thin(paths.nan_to_num(nan=1e6, posinf=1e6, neginf=-1e6))  # diverged: off the branches
    upper, lower = (branch_distances(paths, road) < ON_BRANCH * road.length).unbind(1)
    parts = {"upper": upper, "lower": lower & ~upper, "off_branch": ~(upper | lower)}
    fork_errors = (fit_forks(paths) - FORK_TIME).abs() / road.length
    return {
        **{name: asdict(proportion(int(hits.sum()), len(hits))) for name, hits in parts.items()},
        "fork_error": asdict(mean(fork_errors.tolist())),
        "energy_distance": asdict(energy_distance(paths, road, generator)),
    }


def thin(paths: Tensor) -> Tensor:
    """Keep a hundred points of each path, evenly spaced in time."""
    return paths[:: max(1, len(paths) // 100)]


def branch_distances(paths: Tensor, road: Road) -> Tensor:
    """Return the Hausdorff distance of each path to both branches, (n, 2).

    It is large for a path that leaves the branch, stops short of its end or drives past it.
    """
    distances = []
    for branch in thin(road.paths()).double().unbind(1):
        gaps = torch.cdist(paths.transpose(0, 1).double(), branch.expand(paths.shape[1], -1, -1))
        distances.append(torch.maximum(gaps.amin(1).amax(1), gaps.amin(2).amax(1)))
    return torch.stack(distances, dim=1)


def fit_forks(paths: Tensor) -> Tensor:
    """Return the x_f of each path for which y = ± tan 30° · max(0, x − x_f) fits best, (n,).

    Least squares by golden-section search between 0 and the largest x. A path that never turns forks at its
    end.
    """
    x, y = paths.double().unbind(-1)
    slope = math.tan(ANGLE) * torch.where(y[-1] < 0, -1.0, 1.0)

    def misfit(fork: Tensor) -> Tensor:
        return (y - slope * (x - fork).clamp(min=0)).square().mean(0)

    golden = (math.sqrt(5) - 1) / 2
    low, high = torch.zeros_like(slope), x.amax(0).clamp(min=0)
    for _ in range(40):
        left, right = high - golden * (high - low), low + golden * (high - low)
        go_left = misfit(left) < misfit(right)
        low, high = torch.where(go_left, low, left), torch.where(go_left, right, high)
    return (low + high) / 2


def energy_distance(paths: Tensor, road: Road, generator: torch.Generator) -> Estimate:
    """Return 2 E|X − Y| − E|X − X′| − E|Y − Y′| for generated X and true Y: 0 only if both agree.

    |·| is the root-mean-square distance of two paths over time. The interval resamples generated paths.
    """
    scale = math.sqrt(len(paths))
    x, y = (p.transpose(0, 1).flatten(1).double() / scale for p in (paths, thin(road.paths())))
    distances = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")  # which would cancel
    to_truth, among_generated, among_true = distances(x, y).mean(1), distances(x, x), distances(y, y).mean()

    def distance(weight: Tensor) -> Tensor:
        return 2 * weight @ to_truth - ((weight @ among_generated) * weight).sum(-1) - among_true

    n = len(x)
    picks = torch.randint(n, (RESAMPLES, n), generator=generator)
    weights = torch.zeros(RESAMPLES, n, dtype=torch.float64)
    weights.scatter_add_(1, picks, torch.full((RESAMPLES, n), 1 / n, dtype=torch.float64))
    low, high = distance(weights).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(distance(torch.full((1, n), 1 / n, dtype=torch.float64)).item(), low, high, n)


SCORES = {
    "upper": ("upper %", ".1%"),
    "lower": ("lower %", ".1%"),
    "off_branch": ("off-branch %", ".1%"),
    "fork_error": ("fork error %", ".2%"),
    "energy_distance": ("energy distance", ".4f"),
}
"""Title and number format of the scores."""


def format_table(summary: list[dict[str, Any]]) -> str:
    """Format the summary: mean (smallest to largest over the seeds)."""
    lines = []
    for row in summary:
        cells = [str(row["density"]), row["label"]]
        for score, (_, form) in SCORES.items():
            value, low, high = (format(number, form).rstrip("%") for number in row[score].values())
            cells.append(f"{value} ({low} to {high})")
        lines.append([*cells, f"{row['network_calls']:,}", "met" if row["bars_met"] else "–"])
    head = ["density", "method", *(title for title, _ in SCORES.values()), "network calls", "bars"]
    return format_markdown(head, lines)


# --- The figures -----------------------------------------------------------------------------------------

View = tuple[float, float, float, float]
"""Part of the plane: left, right, bottom, top."""
PLANE: View = (-0.4, 9.6, -3.1, 3.1)
FORK: View = (4.0, 5.5, -0.5, 0.5)
GRIDS = {PLANE: (93, 59), FORK: (61, 41)}
"""Columns and rows of states at which a view shows the learned equation."""
DRAWN_PATHS = 20
UPPER, LOWER = "#0072B2", "#D55E00"


class Field(NamedTuple):
    """The learned equation on a grid of states x; every tensor is (rows, columns, 2)."""

    x: Tensor
    flow: Tensor
    denoiser: Tensor
    diffusion: Tensor


def make_grid(view: View) -> Tensor:
    """Return the states of a view's grid, (rows, columns, 2)."""
    columns, rows = GRIDS[view]
    x, y = torch.linspace(*view[:2], columns), torch.linspace(*view[2:], rows)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


@dataclass
class Pictures:
    """What the figures show: paths by label and density, and fields by view."""

    paths: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    fields: dict[View, Field] = field(default_factory=dict)
    shares: dict[tuple[str, int], str] = field(default_factory=dict)

    def save(
        self,
        summary: list[dict[str, Any]],
        methods: list[str],
        ablation: dict[str, tuple[bool, bool]],
        out: Path,
    ) -> None:
        """Write both figures as PNG and SVG, with the shares of a summary."""
        for row in summary:
            upper, lower, off = (100 * row[score]["value"] for score in ("upper", "lower", "off_branch"))
            self.shares[row["label"], row["density"]] = f"up {upper:.0f}  down {lower:.0f}  off {off:.0f} %"
        densities = sorted({density for _, density in self.paths})
        with plot_style():
            figures = {
                "trajectories": self.draw_trajectories(methods, densities),
                "ablation": self.draw_ablation(ablation, densities[-1]),
            }
            out.mkdir(parents=True, exist_ok=True)
            for name, figure in figures.items():
                for kind in ("png", "svg"):
                    (out / f"{name}.{kind}").write_bytes(encode_figure(figure, kind))

    def draw_trajectories(self, methods: list[str], densities: list[int]) -> "Figure":
        """Draw one row per density and one column per method."""
        rows, columns = len(densities), len(methods)
        size = (1.75 * columns, 1.3 * rows + 0.55)
        figure, axes = make_figure(rows, columns, size, layout=None, sharex=True, sharey=True)
        for row, density in zip(axes, densities, strict=True):
            for axis, method in zip(row, methods, strict=True):
                draw_paths(axis, self.paths[method, density], density, PLANE, width=0.6)
                draw_caption(axis, self.shares[method, density])
            row[0].set_ylabel(f"density {density}\n{100 * density} points")
        for axis, method in zip(axes[0], methods, strict=True):
            axis.set_title(method.replace(", ", "\n"), fontweight="normal" if "," in method else "bold")
        figure.tight_layout(pad=0.4, w_pad=0.3, h_pad=0.4)
        return figure

    def draw_ablation(self, ablation: dict[str, tuple[bool, bool]], density: int) -> "Figure":
        """Draw drift and paths of each combination of parts: the plane above, the fork below."""
        figure, axes = make_figure(2, len(ablation), (2.55 * len(ablation), 3.9), sharex="row", sharey="row")
        for row, (view, stride, width) in zip(axes, ((PLANE, 6, 0.7), (FORK, 5, 0.8)), strict=True):
            grid = self.fields[view]
            for axis, (label, (denoiser, diffusion)) in zip(row, ablation.items(), strict=True):
                drift = grid.flow + grid.denoiser if denoiser else grid.flow
                draw_arrows(axis, grid.x, drift, stride)
                draw_paths(axis, self.paths[label, density], density, view, width=width)
                if view == PLANE:
                    axis.set_title(label, fontweight="bold" if denoiser and diffusion else "normal")
                    draw_caption(axis, self.shares[label, density])
                elif diffusion:
                    g = grid.diffusion[..., 1]
                    draw_caption(axis, f"g in y: {g.min():.3f} to {g.max():.3f}")
        axes[1, 0].set_xticks([4.0, 4.5, 5.0, 5.5])
        axes[0, 0].set_ylabel(f"density {density}")
        axes[1, 0].set_ylabel("the fork, magnified")
        return figure


def draw_arrows(axis: "Axes", x: Tensor, drift: Tensor, stride: int) -> None:
    """Draw a drift, its length cut at 1.5: far from the road it is very large."""
    every = slice(stride // 2, None, stride)
    v = drift[every, every]
    speed = v.norm(dim=-1, keepdim=True)
    v = v / speed.clamp(min=1e-9) * speed.clamp(max=1.5)
    head = {"headwidth": 4, "headlength": 4.5, "headaxislength": 4}
    look = {"color": "#4D4D4D", "alpha": 0.55, "width": 0.004, "zorder": 1}
    arrows = [part.numpy() for part in (*x[every, every].unbind(-1), *v.unbind(-1))]
    axis.quiver(*arrows, angles="xy", pivot="mid", scale=24, **head, **look)


def draw_paths(axis: "Axes", paths: Tensor, density: int, view: View, *, width: float) -> None:
    """Draw paths (points, n, 2), coloured by the side on which they end, and the road, dashed."""
    left, right, bottom, top = view
    margin = 0.1 * (right - left)
    paths = thin(paths) if view == PLANE else paths
    for path in paths[:, :DRAWN_PATHS].unbind(1):
        visible = (path[:, 0] > left - margin) & (path[:, 0] < right + margin)
        colour = UPPER if path[-1, 1] > 0 else LOWER
        line = path[visible].numpy().T
        axis.plot(*line, color=colour, linewidth=width, alpha=0.5, solid_capstyle="round", zorder=2)
    for path in Road(density).paths().unbind(1):
        axis.plot(*path.numpy().T, color="#000000", linewidth=0.7, linestyle=(0, (3, 3)), zorder=3)
    axis.set(xlim=(left, right), ylim=(bottom, top))


def draw_caption(axis: "Axes", text: str) -> None:
    """Write a line of text into the lower left corner."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axis.text(0.03, 0.04, text, transform=axis.transAxes, fontsize=6.5, va="bottom", bbox=box, zorder=4)


if __name__ == "__main__":
    print(__doc__)
