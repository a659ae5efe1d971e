"""Tests for training/progress.py and display.py: the bar, quick evaluations, and how they are drawn."""

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
from nsde_policy.training.display import format_duration
from nsde_policy.training.progress import ProgressMonitor, plot_training
from nsde_policy.training.run import train_run
from tests.helpers.toy_problems import make_robot_demos


def find_evaluated(run: RunDirectory, every: int, steps: int, records: list[int]) -> list[int]:
    """Return the steps at which a monitor evaluates, and record them in the run."""
    training: Any = SimpleNamespace(averaged_weights=dict, model=None)
    found = []
    with ProgressMonitor(run, steps, every, lambda path: {"reward": -1.0}, False) as monitor:
        for step in records:
            scores = monitor(TrainingProgress(step, steps, 0.0, {"loss": 1.0}, training))
            run.append_metrics({"step": step, **scores})
            found += [step] if scores else []
    return found


@pytest.mark.parametrize(
    ("every", "steps", "records", "evaluated"),
    [
        (150, 300, [100, 200, 300], [200, 300]),
        (100, 300, [100, 200, 300], [100, 200, 300]),
        (30, 40, [10, 20, 30, 40], [30, 40]),
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


def test_plot_shows_whole_negative_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    figure = pytest.importorskip("matplotlib.figure")
    shown: list[list[str]] = []

    def save(self: Any, *args: Any, **options: Any) -> None:
        self.canvas.draw()
        shown.extend([label.get_text() for label in axis.get_yticklabels()] for axis in self.axes)

    monkeypatch.setattr(figure.Figure, "savefig", save)
    rewards = (-13220.41, -13220.39, -13220.38)
    lines = [{"step": i, "loss": 1.0, "reward": reward} for i, reward in enumerate(rewards)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert plot_training(RunDirectory(tmp_path)) is not None
    marks = shown[1]
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
def test_bar_starts_at_step_0_and_three_steps_give_an_estimate(
    level: str,
    is_shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    caplog.set_level(logging.getLevelName(level), logger="nsde_policy")
    config = RunConfig(
        model=NeuralSDEConfig(network=NetworkConfig(width=8, depth=1)),
        train=TrainConfig(steps=5, batch_size=2),
    )
    train_run(make_robot_demos(), config, tmp_path / "run", task="none", seed=0)
    estimates = [line for line in caplog.messages if line.startswith("training: about ")]
    assert [line.endswith(" for 2 more steps") for line in estimates] == [True] * is_shown
    assert ("training:   0%|" in terminal.getvalue()) == is_shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59, "59 s"), (61, "1.0 min"), (9e5, "250 h")]
)
def test_duration_is_shown_in_its_largest_unit(seconds: float, text: str):
    assert format_duration(seconds) == text
