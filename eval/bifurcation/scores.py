"""Scores of generated paths against the Y, each with an interval over the generated paths.

Paths are (points, n, 2). Tolerances and errors are fractions of the length of a true trajectory.
"""

import math
from functools import partial

import msgspec
import torch
from torch import Tensor

from nsde_policy.eval.bifurcation.data import ANGLE, FORK_X, POINTS_PER_DENSITY, Bifurcation
from nsde_policy.eval.statistics import Estimate, mean, proportion

ON_BRANCH = 0.02
"""A path is on a branch if its Hausdorff distance to it is below this fraction of the length."""
RESAMPLES = 200
FAR = 1e6
"""Replacement for coordinates that are NaN or infinite, state units."""


class PathScores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores of the paths of one trained model."""

    upper: Estimate
    """Fraction of all paths that follow the upper branch."""
    lower: Estimate
    """Fraction of all paths that follow the lower branch."""
    off_branch: Estimate
    """Fraction of all paths that follow neither: 1 − upper − lower."""
    fork_error: Estimate
    """Mean distance of the paths' forks from the true one, as a fraction of the length."""
    energy_distance: Estimate
    """Energy distance between the distributions of generated and true paths, state units."""
    network_calls: int
    """Evaluations of a network per path."""


def score_paths(
    paths: Tensor, task: Bifurcation, *, network_calls: int, generator: torch.Generator
) -> PathScores:
    """Score generated paths (points, n, 2); the generator resamples for the interval of one score."""
    paths = paths.nan_to_num(nan=FAR, posinf=FAR, neginf=-FAR)  # a path that diverged is off-branch
    near = branch_distances(paths, task) < ON_BRANCH * task.length
    upper, lower = near[:, 0], near[:, 1]
    fork_errors = (fit_fork_points(thin_paths(paths)) - FORK_X).abs() / task.length
    return PathScores(
        upper=estimate_fraction(upper),
        lower=estimate_fraction(lower & ~upper),
        off_branch=estimate_fraction(~(upper | lower)),
        fork_error=mean(fork_errors.tolist(), resamples=RESAMPLES),
        energy_distance=energy_distance(paths, task, generator),
        network_calls=network_calls,
    )


def thin_paths(paths: Tensor) -> Tensor:
    """Keep about a hundred points of each path, evenly spaced in time."""
    return paths[:: max(1, len(paths) // POINTS_PER_DENSITY)]


def estimate_fraction(hits: Tensor) -> Estimate:
    """Return the fraction of true elements of (n,), with Wilson's interval."""
    return proportion(int(hits.sum()), len(hits))


def branch_distances(paths: Tensor, task: Bifurcation) -> Tensor:
    """Return the Hausdorff distance from each path to both true trajectories, state units, (n, 2).

    max(maxₐ min_b |a − b|, max_b minₐ |a − b|) over points a of the path and b of the trajectory: it is large
    for a path that leaves the branch, stops short of its end or goes past it.
    """
    generated, truth = thin_paths(paths).transpose(0, 1).double(), thin_paths(task.trajectories()).double()
    distances = []
    for branch in truth.unbind(1):
        gaps = torch.cdist(generated, branch.expand(len(generated), -1, -1))
        distances.append(torch.maximum(gaps.amin(1).amax(1), gaps.amin(2).amax(1)))
    return torch.stack(distances, dim=1)


def fit_fork_points(paths: Tensor) -> Tensor:
    """Return the x of each path's fork, (n,): the x_f for which y = ± tan 30° · max(0, x − x_f) fits best.

    Least squares over the points of the path, the sign that of its end, by golden-section search between 0
    and the path's largest x (the sum of squares has one minimum for a path that leaves the stem once). The
    fork of a path that never turns is its end.
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
    """Return 2 E|X − Y| − E|X − X′| − E|Y − Y′| for generated X and true Y; 0 only for equal distributions.

    |·| is the root-mean-square distance over time of two paths, each taken at about a hundred times. The
    true distribution is known (two trajectories, one half each), so it is not sampled. The interval resamples
    generated paths.
    """
    truth = thin_paths(task.trajectories())
    scale = math.sqrt(len(truth))
    generated = thin_paths(paths).transpose(0, 1).flatten(1).double() / scale
    true = truth.transpose(0, 1).flatten(1).double() / scale
    distances = partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")  # which would cancel
    to_truth, among_generated = distances(generated, true).mean(1), distances(generated, generated)
    among_true = distances(true, true).mean()

    def distance(weight: Tensor) -> Tensor:
        return 2 * weight @ to_truth - ((weight @ among_generated) * weight).sum(-1) - among_true

    n = len(generated)
    picks = torch.randint(n, (RESAMPLES, n), generator=generator)
    weights = torch.zeros(RESAMPLES, n, dtype=torch.float64)
    weights.scatter_add_(1, picks, torch.full((RESAMPLES, n), 1 / n, dtype=torch.float64))
    low, high = distance(weights).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(distance(torch.full((1, n), 1 / n, dtype=torch.float64)).item(), low, high, n)
