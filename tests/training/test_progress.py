"""Tests for training/progress.py and checkpoints.py: quick evaluations, how they are drawn, progress."""

import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.checkpoints import TrainingProgress
from nsde_policy.training.progress import QuickEvaluations, plot_training
from nsde_policy.training.run import train_run
from tests.helpers.toy_problems import make_robot_demos


def find_evaluated(run: RunDirectory, every: int, steps: int, records: list[int]) -> list[int]:
    """Return the steps at which a monitor evaluates, and record them in the run."""
    training: Any = SimpleNamespace(averaged_weights=dict, model=None)
    found = []
    monitor = QuickEvaluations(run, steps, every, lambda path: {"reward": -1.0})
    for step in records:
        scores = monitor(TrainingProgress(step, steps, "training", 0.0, {"loss": 1.0}, training))
        run.append_metrics({"step": step, **scores})
        found += [step] if scores else []
    return found


@pytest.mark.parametrize(
    ("every", "steps", "records", "evaluated"),
    [
        (150, 300, [100, 200, 300], [200, 300]),
        (1000, 300, [100, 200, 300], [300]),
        (250, 600, [100, 200, 300, 400, 500, 600], [300, 500, 600]),
    ],
)
def test_evaluates_at_the_first_record_after_each_multiple_and_at_the_end(
    tmp_path: Path, every: int, steps: int, records: list[int], evaluated: list[int]
):
    assert find_evaluated(RunDirectory(tmp_path), every, steps, records) == evaluated


def test_resumed_run_keeps_to_the_multiples(tmp_path: Path):
    run = RunDirectory(tmp_path)
    assert find_evaluated(run, 300, 900, [100, 200, 300, 400]) == [300]
    assert find_evaluated(run, 300, 900, [500, 600, 700, 800, 900]) == [600, 900]


def test_plot_shows_losses_held_out_ones_dashed_and_whole_negative_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    rewards = (-13220.41, -13220.39, -13220.38)
    losses = {"loss": 1.0, "validation_loss": 2.0}
    lines = [{"step": i, **losses, "reward": reward} for i, reward in enumerate(rewards)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert plot_training(RunDirectory(tmp_path)) is not None
    drawn[0].canvas.draw()
    above, below = drawn[0].axes
    assert {line.get_label(): line.get_linestyle() for line in above.lines} == {
        "loss": "-",
        "loss, held out": "--",
    }
    marks = [label.get_text() for label in below.get_yticklabels()]
    assert len(set(marks)) == len(marks) >= 3
    assert all(mark.startswith("−13220.") for mark in marks)


@pytest.mark.parametrize("metrics", [None, "", "{"])
def test_run_without_metrics_has_no_plot(tmp_path: Path, metrics: str | None):
    if metrics is not None:
        (tmp_path / "metrics.jsonl").write_text(metrics)
    assert plot_training(RunDirectory(tmp_path)) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("level", "is_shown"), [("INFO", True), ("WARNING", False)])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_else_lines_of_the_log(
    level: str,
    is_shown: bool,
    is_terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(sys, "stderr", stderr := Terminal() if is_terminal else io.StringIO())
    caplog.set_level(logging.getLevelName(level), logger="nsde_policy")
    config = RunConfig(
        model=NeuralSDEConfig(network=NetworkConfig(width=8, depth=1)),
        train=TrainConfig(steps=5, batch_size=2),
    )
    train_run(make_robot_demos(), config, tmp_path / "run", seed=0)
    lines = [line for line in caplog.messages if line.startswith("training step 5/5, ")]
    assert len(lines) == (is_shown and not is_terminal)
    assert ("training:   0%|" in stderr.getvalue()) == (is_shown and is_terminal)
