"""Tests for examples/bifurcation.py: road, scores with known answers, methods, published results."""

import itertools
import json
import math
import sys
from pathlib import Path

import bifurcation
import pytest
import torch
from bifurcation import (
    ABLATION,
    DDIM,
    METHODS,
    Budget,
    RectifiedFlow,
    Settings,
    sample_neural_sde,
    summarise,
    train_neural_sde,
)
from bifurcation_road import Road, format_table, score_paths, thin

from tests.helpers.rng import make_rng

PUBLISHED = json.loads((Path(__file__).parents[1] / "benchmarks/results/bifurcation.json").read_text())
ROAD = Road(1)


def score(paths, road=ROAD):
    """Return the value of each score."""
    return {name: found["value"] for name, found in score_paths(paths, road, make_rng()).items()}


@pytest.mark.parametrize("density", [1, 10])
def test_the_road_runs_straight_then_turns_by_thirty_degrees(density):
    road = Road(density)
    path = road.paths().double()
    velocity = (path[1:] - path[:-1]) / road.dt
    fork = 45 * density
    turned = math.sqrt(0.75), 0.5
    expected = torch.tensor([[1.0, 0.0], turned, [turned[0], -0.5]]).double()
    torch.testing.assert_close(path[fork], torch.tensor([[4.5, 0.0]] * 2).double())
    assert (velocity[:fork] - expected[0]).abs().max() < 1e-3
    assert (velocity[fork:] - expected[1:]).abs().max() < 1e-3


def test_scores_of_demonstrations_of_one_branch_and_of_shifted_demonstrations():
    both = ROAD.paths()
    found = score(both.repeat(1, 50, 1))
    assert (found["upper"], found["lower"], found["off_branch"]) == (0.5, 0.5, 0.0)
    assert found["fork_error"] < 1e-6
    assert found["energy_distance"] == pytest.approx(0, abs=1e-9)
    found = score(both[:, :1].repeat(1, 20, 1))
    assert (found["upper"], found["lower"], found["off_branch"]) == (1.0, 0.0, 0.0)
    branches = thin(both).double()
    gap = (branches[:, 0] - branches[:, 1]).square().sum(-1).mean().sqrt().item()
    assert found["energy_distance"] == pytest.approx(gap / 2, rel=1e-6)  # 2·D/2 − 0 − D/2
    found = score(both.repeat(1, 10, 1) + torch.tensor([0.1, 0.0]))
    # |X − Y| is h for the same branch and √(h² + D²) for the other; X and X′ as Y and Y′ are 0 or D apart
    assert found["energy_distance"] == pytest.approx(0.1 + math.hypot(0.1, gap) - gap, rel=1e-5)


def test_straight_short_and_diverged_paths_are_off_branch():
    straight, short, diverged = (ROAD.paths() for _ in range(3))
    straight[..., 0], straight[..., 1] = torch.arange(100)[:, None] / 10, 0
    short[90:] = short[90]
    diverged[50:] = math.nan
    assert [score(paths)["off_branch"] for paths in (straight, short, diverged)] == [1.0] * 3
    assert score(straight)["fork_error"] == pytest.approx((9.9 - 4.5) / 9.9, abs=1e-3)  # at its end


@pytest.mark.slow
def test_neural_sde_takes_both_branches_and_without_diffusion_only_one():
    budget = Budget(train_steps=400, paths=300, seed=7)
    model = train_neural_sde(ROAD, budget)
    paths, calls = sample_neural_sde(model, ROAD, budget)
    found = score(paths)
    assert min(found["upper"], found["lower"]) > 0.35
    assert found["off_branch"] < 0.06
    assert found["fork_error"] < 0.02
    assert calls == 4 * 99
    same, _ = sample_neural_sde(model, ROAD, budget, diffusion=False)
    assert (same - same[:, :1]).abs().max() < 1e-3


def test_published_results_are_those_of_the_default_settings():
    assert PUBLISHED["settings"] == json.loads(json.dumps(vars(Settings())))
    rows = itertools.product(Settings().densities, [*METHODS, *ABLATION])
    summary = [summarise(PUBLISHED["runs"], label, density) for density, label in rows]
    assert summary == PUBLISHED["summary"]
    row = "| 10 | Neural SDE | 48.8 (45.9 to 51.2) | 50.6 (48.3 to 53.6) | 0.7 (0.5 to 1.0) |"
    assert row in format_table(summary)


@pytest.mark.slow
def test_a_smoke_run_prints_and_writes_results_and_figures(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bifurcation, "SOLVER_STEP", 0.1)
    monkeypatch.setattr(DDIM, "CALLS", 3)
    monkeypatch.setattr(RectifiedFlow, "CALLS", 2)
    out = str(tmp_path / "two")
    monkeypatch.setattr(sys, "argv", ["bifurcation.py", "--smoke", "--seeds", "2", "--json", "--out", out])
    bifurcation.main()
    printed = json.loads(capsys.readouterr().out)
    figures = {f"{name}.{kind}" for name in ("trajectories", "ablation") for kind in ("png", "svg")}
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"results.json", *figures}
    assert json.loads((tmp_path / "two/results.json").read_text()) == printed
    assert [*printed] == [*PUBLISHED]
    for label in {run["label"] for run in printed["runs"]}:  # another seed gives other paths
        pair = [run["scores"]["energy_distance"]["value"] for run in printed["runs"] if run["label"] == label]
        assert len(set(pair)) == 2, label
