"""Tests for eval/bifurcation: data, scores of paths with known answers, samplers, published results."""

import json
import math
from pathlib import Path

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.bifurcation.data import FORK_X, Bifurcation
from nsde_policy.eval.bifurcation.methods import (
    Budget,
    interpolate_paths,
    sample_neural_sde,
    train_neural_sde,
)
from nsde_policy.eval.bifurcation.results import ExperimentResults
from nsde_policy.eval.bifurcation.samplers import DDIM, Pairs, RectifiedFlow
from nsde_policy.eval.bifurcation.scores import (
    branch_distances,
    energy_distance,
    estimate_fraction,
    fit_fork_points,
    score_paths,
    thin_paths,
)
from nsde_policy.training.loop import fit


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def copy_data(task, each):
    """Return `each` copies of both true trajectories."""
    return task.trajectories().repeat(1, each, 1)


@pytest.mark.parametrize(("density", "points"), [(1, 100), (10, 1000)])
def test_trajectories_run_straight_then_turn_by_thirty_degrees(density, points):
    task = Bifurcation(density)
    path = task.trajectories().double()
    assert path.shape == (points, 2, 2)
    velocity = (path[1:] - path[:-1]) / task.dt
    before = (task.times()[:-1] < 4.5 - 1e-9).sum().item()
    assert before == 45 * density
    tolerance = {"atol": 1e-3, "rtol": 0}
    torch.testing.assert_close(velocity.norm(dim=-1), torch.ones(points - 1, 2).double(), **tolerance)
    angle = torch.atan2(velocity[..., 1], velocity[..., 0]).rad2deg()
    assert angle[:before].abs().max() < 0.1
    torch.testing.assert_close(
        angle[before:], torch.tensor([30.0, -30.0]).double().expand(points - 1 - before, 2), atol=0.1, rtol=0
    )


def test_fork_is_a_point_of_the_data():
    for density in (1, 10):
        path = Bifurcation(density).trajectories()
        torch.testing.assert_close(path[45 * density], torch.tensor([[4.5, 0.0], [4.5, 0.0]]))


def test_density_below_one_is_rejected():
    with pytest.raises(ConfigError, match="density >= 1"):
        Bifurcation(0)


@pytest.mark.parametrize("density", [1, 10])
def test_true_paths_score_perfectly(density):
    task = Bifurcation(density)
    found = score_paths(copy_data(task, 50), task, network_calls=7, generator=rng())
    assert (found.upper.value, found.lower.value, found.off_branch.value) == (0.5, 0.5, 0.0)
    assert found.fork_error.value < 1e-6
    assert found.energy_distance.value == pytest.approx(0, abs=1e-9)
    assert found.network_calls == 7


def test_scores_of_one_branch_alone():
    task = Bifurcation(1)
    both = thin_paths(task.trajectories()).double()
    apart = (both[:, 0] - both[:, 1]).square().sum(-1).mean().sqrt().item()
    upper = task.trajectories()[:, :1].repeat(1, 20, 1)
    found = score_paths(upper, task, network_calls=1, generator=rng())
    assert (found.upper.value, found.lower.value, found.off_branch.value) == (1.0, 0.0, 0.0)
    assert found.energy_distance.value == pytest.approx(apart / 2, rel=1e-6)  # 2·D/2 − 0 − D/2


def test_straight_paths_are_off_branch_and_fork_at_their_end():
    task = Bifurcation(1)
    x = task.times().float()
    straight = torch.stack([x, torch.zeros_like(x)], -1)[:, None].expand(-1, 10, 2)
    found = score_paths(straight, task, network_calls=1, generator=rng())
    assert found.off_branch.value == 1.0
    assert found.fork_error.value == pytest.approx((9.9 - FORK_X) / 9.9, abs=1e-3)


@pytest.mark.parametrize("late", [-0.7, 0.05, 1.3])
def test_fork_of_a_path_that_turns_early_or_late_is_found(late):
    path = Bifurcation(10).trajectories()
    x = path[..., 0]
    y = math.tan(math.radians(30)) * (x - FORK_X - late).clamp(min=0)
    moved = torch.stack([x, y * torch.tensor([1.0, -1.0])], -1)
    torch.testing.assert_close(
        fit_fork_points(moved), torch.full((2,), FORK_X + late).double(), atol=1e-4, rtol=0
    )


def test_path_that_stops_short_is_off_branch():
    task = Bifurcation(1)
    short = task.trajectories().clone()
    short[90:] = short[90]
    assert (branch_distances(short, task).amin(1) > 0.02 * task.length).all()


def test_energy_distance_of_shifted_data():
    task, h, each = Bifurcation(1), 0.1, 10
    moved = copy_data(task, each)
    moved[..., 0] += h
    both = thin_paths(task.trajectories()).double()
    apart = (both[:, 0] - both[:, 1]).square().sum(-1).mean().sqrt().item()
    # |X − Y| is h for the same branch and √(h² + D²) for the other; X and X′ as Y and Y′ are 0 or D apart
    expected = h + math.hypot(h, apart) - apart
    assert energy_distance(moved, task, rng()).value == pytest.approx(expected, rel=1e-5)


def test_wilson_interval_of_a_fraction():
    found = estimate_fraction(torch.arange(100) < 20)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.1334, 0.2888), abs=1e-4)


def test_interpolation_is_linear_between_knots():
    knots = torch.tensor([[[0.0, 0.0]], [[2.0, 4.0]], [[3.0, 1.0]]])
    path = interpolate_paths(knots, torch.tensor([0, 4, 6]))
    assert path[:, 0, 0].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert path[:, 0, 1].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 2.5, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DDIM, RectifiedFlow])
def test_sampler_learns_conditional_and_bimodal_targets(kind):
    condition = torch.tensor([[-1.0], [1.0], [0.0], [0.0]])
    data = Pairs(condition, torch.tensor([[-0.8], [0.8], [-0.8], [0.8]]))
    network = NetworkConfig(width=32, depth=2, dropout=0.0, activation="silu")
    model = kind(1, 1, network, calls=20, generator=rng())
    fit(model, data, TrainConfig(steps=600, batch_size=256, learning_rate=5e-3, ema=0.99), seed=0)
    with torch.inference_mode():
        low, high, open_ = (model.sample(torch.full((400, 1), c), rng(1)) for c in (-1.0, 1.0, 0.0))
    assert ((low + 0.8).abs() < 0.15).double().mean() > 0.9
    assert ((high - 0.8).abs() < 0.15).double().mean() > 0.9
    assert 0.4 < (open_ > 0).double().mean() < 0.6
    assert ((open_.abs() - 0.8).abs() < 0.2).double().mean() > 0.9


@pytest.mark.slow
def test_neural_sde_takes_both_branches_at_density_one():
    task, budget = Bifurcation(1), Budget(train_steps=600, paths=300, seed=7)
    model = train_neural_sde(task, budget)
    made = sample_neural_sde(model, task, budget)
    found = score_paths(made.paths, task, network_calls=made.network_calls, generator=rng())
    assert found.upper.value > 0.35
    assert found.lower.value > 0.35
    assert found.off_branch.value < 0.06
    assert found.fork_error.value < 0.02
    assert found.network_calls == 4 * 99


PUBLISHED = Path(__file__).parents[2] / "benchmarks/results/bifurcation.json"


def test_published_results_are_read_and_written_unchanged():
    results = ExperimentResults.read(PUBLISHED)
    published, again = json.loads(PUBLISHED.read_text()), json.loads(results.to_json())
    assert again | {"nsde_policy": ""} == published | {"nsde_policy": ""}
    row = "| 10 | Neural SDE | 48.8 (45.9 to 51.2) | 50.6 (48.3 to 53.6) | 0.7 (0.5 to 1.0) |"
    assert row in results.to_markdown()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 3}, "Expected `array`, got `int` - at `\\$.runs`"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"settings": {"densities": [], "seeds": [0], "paths": 2, "train_steps": 1}}, "at least one density"),
    ],
)
def test_damaged_results_are_rejected(tmp_path, change, message):
    (tmp_path / "x.json").write_text(json.dumps(json.loads(PUBLISHED.read_text()) | change))
    with pytest.raises(ComparisonError, match=f"x.json is not a results.json .*{message}"):
        ExperimentResults.read(tmp_path / "x.json")
