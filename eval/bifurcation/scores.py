"""How well generated paths match the Y: five figures, each with an interval over the generated paths.

Paths are (points, n, 2). Tolerances and errors are fractions of the length of a true trajectory.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nsde_policy.eval.bifurcation.data import ANGLE, FORK_X, POINTS_PER_DENSITY, Bifurcation
from nsde_policy.eval.statistics import Estimate, mean, proportion

ON_BRANCH = 0.02
"""A path is on a branch when its Hausdorff distance to it is below this fraction of the length."""
RESAMPLES = 200
FAR = 1e6
"""Where a coordinate that is no number is taken to be, state units."""


@dataclass(frozen=True)
class Scores:
    """What came out of one trained model."""

    upper: Estimate
    """Fraction of all paths that follow the upper branch; branch balance is this against `lower`."""
    lower: Estimate
    """Fraction of all paths that follow the lower branch."""
    off_branch: Estimate
    """Fraction of all paths that follow neither: 1 − upper − lower."""
    fork_error: Estimate
    """Mean distance of the paths' forks from the true one, as a fraction of the length."""
    energy_distance: Estimate
    """Energy distance between the laws of generated and true paths, state units."""
    network_calls: int
    """Evaluations of a network per path."""


def score(paths: Tensor, task: Bifurcation, *, network_calls: int, generator: torch.Generator) -> Scores:
    """All figures of generated paths (points, n, 2); the generator resamples for one interval."""
    paths = paths.nan_to_num(nan=FAR, posinf=FAR, neginf=-FAR)  # a path that blew up is far off, not unknown
    near = branch_distances(paths, task) < ON_BRANCH * task.length
    upper, lower = near[:, 0], near[:, 1]
    forks_off = (fork_points(thin(paths)) - FORK_X).abs() / task.length
    return Scores(
        upper=fraction(upper),
        lower=fraction(lower & ~upper),
        off_branch=fraction(~(upper | lower)),
        fork_error=mean(forks_off.tolist(), resamples=RESAMPLES),
        energy_distance=energy_distance(paths, task, generator),
        network_calls=network_calls,
    )


def thin(paths: Tensor) -> Tensor:
    """About a hundred points of each path, evenly spaced in time."""
    return paths[:: max(1, len(paths) // POINTS_PER_DENSITY)]


def branch_distances(paths: Tensor, task: Bifurcation) -> Tensor:
    """Hausdorff distance from each path to both true trajectories, state units, (n, 2).

    max(maxₐ min_b |a − b|, max_b minₐ |a − b|) over points a of the path and b of the trajectory: it sees a
    path that strays, and one that stops short or flies past the end.
    """
    ours, truth = thin(paths).transpose(0, 1).double(), thin(task.trajectories()).double()
    distances = []
    for branch in truth.unbind(1):
        gaps = torch.cdist(ours, branch.expand(len(ours), -1, -1))
        distances.append(torch.maximum(gaps.amin(1).amax(1), gaps.amin(2).amax(1)))
    return torch.stack(distances, dim=1)


def fork_points(paths: Tensor) -> Tensor:
    """Where along x each path forks, (n,): the x_f for which y = ± tan 30° · max(0, x − x_f) fits it best.

    Least squares over the points of the path, the sign that of its end, by golden-section search between 0
    and the path's largest x (the sum of squares has one valley for a path that leaves the stem once). A path
    that never forks gets its own end.
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


def energy_distance(paths: Tensor, task: Bifurcation, generator: torch.Generator) -> Estimate:
    """2 E|X − Y| − E|X − X′| − E|Y − Y′| for generated X and true Y, 0 only where their laws agree.

    |·| is the root-mean-square distance over time of two paths, each taken at about a hundred times. The
    true law is known (two trajectories, one half each), so nothing is sampled of it. The interval resamples
    generated paths.
    """
    truth = thin(task.trajectories())
    scale = math.sqrt(len(truth))
    ours = thin(paths).transpose(0, 1).flatten(1).double() / scale
    theirs = truth.transpose(0, 1).flatten(1).double() / scale
    to_truth = _distances(ours, theirs).mean(1)
    among = _distances(ours, ours)
    within = _distances(theirs, theirs).mean()

    def distance(weight: Tensor) -> Tensor:
        return 2 * weight @ to_truth - ((weight @ among) * weight).sum(-1) - within

    n = len(ours)
    picks = torch.randint(n, (RESAMPLES, n), generator=generator)
    weights = torch.zeros(RESAMPLES, n, dtype=torch.float64)
    weights.scatter_add_(1, picks, torch.full((RESAMPLES, n), 1 / n, dtype=torch.float64))
    low, high = distance(weights).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(distance(torch.full((1, n), 1 / n, dtype=torch.float64)).item(), low, high, n)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances of all pairs of rows, without the cancellation of the fast formula."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def fraction(hits: Tensor) -> Estimate:
    """The fraction of true entries of (n,)."""
    return proportion(int(hits.sum()), len(hits))
