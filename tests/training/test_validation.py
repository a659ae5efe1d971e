"""Tests for validation in training/recorder.py: episodes held out of training and the losses on them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.data import Demonstrations
from nsde_policy.data.split import split_episodes
from nsde_policy.data.statistics import DemoStatistics, measure_statistics
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.policy.loading import build_policy_spec, load_model
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training import selection
from nsde_policy.training.dataset import TrainingSet, build_training_data
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import train_run
from tests.helpers.toy_problems import make_robot_demos

TINY = RunConfig(
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2, dropout=0.3)),
    train=TrainConfig(steps=30, batch_size=16, log_every=10),
)


def train(path: Path, config: RunConfig = TINY, **options: Any) -> RunDirectory:
    train_options = TrainOptions(**{"seed": 3, "validation": 0.2, **options})
    return train_run(make_robot_demos(), config, path, options=train_options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train(tmp_path_factory.mktemp("validation") / "run")


def test_split_is_by_episodes_seeded_and_leaves_one_on_each_side():
    demos = make_robot_demos(10, 7)
    rest, held_out = split_episodes(demos, 0.3, seed=1)
    assert len(held_out) == 3
    assert (rest.act == demos.select([i for i in range(10) if i not in held_out]).act).all()
    assert rest.angles == demos.angles
    assert split_episodes(demos, 0.3, seed=1)[1] == held_out
    assert {split_episodes(demos, 0.3, seed=s)[1] for s in range(5)} != {held_out}
    assert len(split_episodes(demos, 0.001, seed=0)[1]) == 1
    assert len(split_episodes(demos, 0.999, seed=0)[1]) == 9
    assert split_episodes(demos, 0, seed=0) == (demos, ())
    with pytest.raises(ConfigError, match="at least 2 episodes"):
        split_episodes(make_robot_demos(1), 0.5, seed=0)


def test_held_out_episodes_do_not_influence_training_statistics_or_calibration(
    finished: RunDirectory, tmp_path: Path
):
    demos = make_robot_demos()
    record = finished.read_record()
    assert len(record.demos.held_out) == 2
    assert (record.demos.fingerprint, record.demos.episodes) == (demos.fingerprint, 10)
    rest = demos.select([i for i in range(10) if i not in record.demos.held_out])
    alone = train_run(rest, TINY, tmp_path / "run", options=TrainOptions(seed=3))
    assert alone.read_record().spec == record.spec
    for file in ("model.safetensors", "training.safetensors"):
        assert (alone.path / file).read_bytes() == (finished.path / file).read_bytes(), file
    measured, usual = (Calibration.read(run.path, build_policy_spec(record)) for run in (finished, alone))
    assert len(measured.std_factors) == record.spec.dim
    assert replace(measured, std_factors=()) == usual


def test_held_out_episodes_count_for_the_rule_of_plan_selection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measured: list[int] = []

    def measure(demos: Demonstrations, image_features: int) -> DemoStatistics:
        measured.append(len(demos))
        return measure_statistics(demos, image_features)

    monkeypatch.setattr(selection, "measure_statistics", measure)
    train(tmp_path / "run", TINY.change({"selection.select": "auto", "train.steps": 3}))
    assert measured == [len(make_robot_demos())]


def test_validation_losses_are_those_of_the_averaged_weights_with_fixed_noise(finished: RunDirectory):
    records = list(finished.read_metrics())
    assert [record["step"] for record in records] == [10, 20, 30]
    names = {"flow", "diffusion", "denoiser"}
    assert all({f"validation_{name}" for name in names} <= set(record) for record in records)
    record, model = load_model(finished)
    model.requires_grad_(False)
    held_out = make_robot_demos().select(record.demos.held_out)
    data = build_training_data(TrainingSet(held_out), record.config)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(3))
    expected = model.loss(data[order], torch.Generator().manual_seed(3))
    for name in names:
        assert records[-1][f"validation_{name}"] == pytest.approx(float(expected[name]), rel=1e-6)


def test_resumed_run_is_bit_identical_and_keeps_its_split(finished: RunDirectory, tmp_path: Path):
    def interrupt(progress: Any) -> None:
        if progress.step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", monitor=interrupt)
    with pytest.raises(CheckpointError, match="other settings"):
        train(tmp_path / "run", validation=0.5, resume=True)
    run = train(tmp_path / "run", resume=True)
    assert run.model.read_bytes() == finished.model.read_bytes()
    last = [list(r.read_metrics())[-1] for r in (run, finished)]
    assert {**last[0], "seconds": 0} == {**last[1], "seconds": 0}
