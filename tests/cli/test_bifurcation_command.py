"""Tests for `nsde-policy bifurcation`: a small experiment from end to end."""

import json
import sys

import numpy as np
import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.eval.bifurcation import figures, methods
from nsde_policy.eval.bifurcation.experiment import ExperimentSettings, run_experiment
from nsde_policy.eval.bifurcation.methods import ABLATION, METHOD_NAMES
from nsde_policy.eval.bifurcation.results import ExperimentResults
from nsde_policy.eval.bifurcation.samplers import DDIM, RectifiedFlow

pytestmark = pytest.mark.slow

TINY = ["--density", "1", "--paths", "4", "--train-steps", "4"]
FILES = ("results.json", "results.md", "paths.npz")
FIGURES = ("trajectories.png", "trajectories.svg", "ablation.png", "ablation.svg")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Run all methods with few solver steps and network calls."""
    out = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "SOLVER_STEP", 0.1)
        patch.setattr(methods, "CALLS", {DDIM: 3, RectifiedFlow: 2})
        args = ["--seeds", "2", "--workers", "1", "--out", str(out)]
        assert main(["bifurcation", *TINY, *args]) == 0
    return out


def test_a_run_writes_results_and_figures(first):
    assert {p.name for p in first.iterdir()} == {*FILES, *FIGURES}
    results = json.loads((first / "results.json").read_text())
    assert results["settings"]["seeds"] == [0, 1]
    assert {row["label"] for row in results["summary"]} == {*METHOD_NAMES, *ABLATION}
    assert len(results["runs"]) == 2 * (len(METHOD_NAMES) - 1 + len(ABLATION))
    for run in results["runs"]:
        scores = run["scores"]
        parts = [scores[name]["value"] for name in ("upper", "lower", "off_branch")]
        assert sum(parts) == pytest.approx(1)
        assert all(
            scores[name]["low"] <= scores[name]["value"] <= scores[name]["high"]
            for name in ("upper", "lower", "off_branch", "fork_error")
        )
    with np.load(first / "paths.npz") as paths:
        assert paths["Flow + Denoiser + Diffusion at density 1"].shape == (100, 4, 2)
    assert (first / "trajectories.png").read_bytes().startswith(b"\x89PNG")


def test_results_do_not_depend_on_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(methods, "METHOD_NAMES", ("Neural SDE, no variance floor", "DDIM, whole path"))
    settings = ExperimentSettings(densities=(1,), seeds=(0, 1), paths=4, train_steps=4)
    alone, shared = (
        ExperimentResults.collect(settings, run_experiment(settings, workers=workers)) for workers in (1, 2)
    )
    assert len(alone.runs) == 4
    assert shared.runs == alone.runs
    assert [*shared.paths] == [*alone.paths]
    assert all(torch.equal(shared.paths[key], alone.paths[key]) for key in alone.paths)


def test_results_of_a_seed_do_not_depend_on_other_seeds(first, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(figures, "draw_experiment", lambda *_: [])
    monkeypatch.setattr(methods, "SOLVER_STEP", 0.1)
    monkeypatch.setattr(methods, "CALLS", {DDIM: 3, RectifiedFlow: 2})
    args = ["--seeds", "1", "--workers", "1", "--out", str(tmp_path), "--json"]
    assert main(["bifurcation", *TINY, *args]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"]["paths"] == 4
    both_seeds = json.loads((first / "results.json").read_text())["runs"]
    assert printed["runs"] == [run for run in both_seeds if run["seed"] == 0]
    assert (tmp_path / "paths.npz").read_bytes() == (first / "paths.npz").read_bytes()


def test_another_seed_gives_other_paths(first):
    runs = json.loads((first / "results.json").read_text())["runs"]
    for label in {run["label"] for run in runs}:
        found = [run["scores"]["energy_distance"]["value"] for run in runs if run["label"] == label]
        assert len(set(found)) == 2, label


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--paths", "1"], "paths"), (["--seeds", "0"], "--seeds"), (["--density", "3"], "--density")],
)
def test_invalid_arguments_exit_with_code_2(arguments, message, tmp_path, capsys):
    assert main(["bifurcation", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_missing_matplotlib_is_reported_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bifurcation", *TINY, "--out", str(tmp_path)]) == 2
    assert "pip install 'nsde-policy[plot]'" in capsys.readouterr().err


def test_table_of_earlier_results_is_printed(first, capsys):
    assert main(["bifurcation", "--from-json", str(first / "results.json")]) == 0
    assert capsys.readouterr().out == (first / "results.md").read_text()
