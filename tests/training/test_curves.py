"""Tests for training/curves.py, and for the progress of training/recorder.py."""

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.curves import describe_overfitting, plot_training
from nsde_policy.training.train import train_run
from tests.helpers.toy_problems import make_robot_demos


def test_plot_shows_losses_and_those_on_held_out_episodes_dashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    lines = [{"step": i, "loss": 1.0, "validation_loss": 2.0} for i in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert plot_training(RunDirectory(tmp_path)) is not None
    (axis,) = drawn[0].axes
    assert {line.get_label(): line.get_linestyle() for line in axis.lines} == {
        "loss": "-",
        "loss, held out": "--",
    }


@pytest.mark.parametrize(
    ("held_out", "line"),
    [
        ([8, 2, 0.2, 1, 2], "the held-out loss was lowest at step 20, 0.2, and is 2 now"),
        ([40, -3, -8, -2], "the held-out loss was lowest at step 20, -8, and is -2 now"),
        ([8, 2, 1, 1.1], None),
        ([8, 2, 1], None),
        ([1], None),
        ([], None),
    ],
)
def test_a_held_out_loss_that_rises_is_reported(tmp_path: Path, held_out: list[float], line: str | None):
    records = [
        {"step": 10 * i, "flow": 1.0, "validation_flow": loss - 1, "validation_denoiser": 1}
        for i, loss in enumerate(held_out)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    told = describe_overfitting(RunDirectory(tmp_path))
    assert told is None if line is None else told is not None and told.startswith(line)
    assert told is None or "--steps 20" in told


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
    train_run(make_robot_demos(), config, tmp_path / "run")
    lines = [line for line in caplog.messages if line.startswith("training step 5/5, ")]
    assert len(lines) == (is_shown and not is_terminal)
    assert ("training:   0%|" in stderr.getvalue()) == (is_shown and is_terminal)
