"""Tests for training/std_scale.py: held-out episodes measure factors of σ, which scale the next training."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.interface.calibration import CALIBRATION_FILE
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.baselines.knn import NearestNeighboursConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.policy.loading import load_model
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.training.dataset import TrainingSet, build_transitions, measure_state_spec
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.std_scale import fit_factors, measure_errors, measure_std_factors, scale_std
from nsde_policy.training.train import train_run
from tests.helpers.toy_problems import make_robot_demos

CONFIG = RunConfig(
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2, dropout=0.0)),
    train=TrainConfig(steps=20, batch_size=16, log_every=10),
)


def train(path: Path, **options: Any) -> RunDirectory:
    return train_run(make_robot_demos(), CONFIG, path, options=TrainOptions(seed=3, **options))


def read_factors(run: RunDirectory) -> list[float]:
    factors: list[float] = json.loads((run.path / CALIBRATION_FILE).read_text())["std_factors"]
    return factors


def test_factors_are_those_of_normal_errors():
    rng = np.random.default_rng(0)
    ratios = rng.normal(size=(40_000, 3)) * [0.5, 1.0, 3.0]
    known = np.ones_like(ratios, bool)
    known[:, 1] = False
    np.testing.assert_allclose(fit_factors(ratios, known), [0.5, 1.0, 3.0], rtol=0.02)


def test_rare_large_errors_do_not_widen_the_usual_interval():
    rng = np.random.default_rng(0)
    ratios = rng.normal(size=(40_000, 1))
    ratios[::100] *= 30  # the root mean square is 3.2
    (factor,) = fit_factors(ratios, np.ones_like(ratios, bool))
    for level in (0.68, 0.95):
        bound = factor * NormalDist().inv_cdf(0.5 + level / 2)
        assert np.mean(np.abs(ratios) <= bound) == pytest.approx(level, abs=0.02)


def test_scaling_multiplies_the_standard_deviation_alone():
    spec = measure_state_spec(TrainingSet(make_robot_demos()), CONFIG)
    model = NeuralSDE(CONFIG.model, spec, generator=torch.Generator().manual_seed(0)).eval()
    states = torch.randn(5, 2, spec.dim, generator=torch.Generator().manual_seed(1))
    before = model.predict_step(states)
    factor = torch.linspace(0.5, 2.0, spec.dim)
    model.scale_std(factor)
    after = model.predict_step(states)
    assert torch.equal(after.mean, before.mean)
    torch.testing.assert_close(after.std, before.std * factor, rtol=1e-4, atol=0)


def test_factors_of_a_run_fit_its_held_out_episodes_and_scale_the_next_one(tmp_path: Path):
    run = train(tmp_path / "run", validation=0.3)
    record, model = load_model(run)
    held_out = make_robot_demos().select(record.demos.held_out)
    pairs = build_transitions(held_out, record.config.demos, history=2, final_action_weight=1.0)

    def measure(model: PolicyModel[Any]) -> np.ndarray:
        errors = measure_errors(model, pairs, 2, record.spec.circular)
        return fit_factors(errors, (pairs.weight > 0).numpy())

    factors = read_factors(run)
    np.testing.assert_allclose(factors, measure(model))
    assert abs(np.log(factors)).max() > 0.1
    options: dict[str, Any] = {"std_factors": tuple(factors)}
    scaled, plain = train(tmp_path / "scaled", **options), train(tmp_path / "plain")
    assert read_factors(scaled) == factors
    needed, without = (measure(load_model(each)[1]) for each in (scaled, plain))
    np.testing.assert_allclose(needed * factors, without, rtol=0.02)
    weights = fingerprint(scaled.read_weights())
    again = train(scaled.path, **options, resume=True)
    assert fingerprint(again.read_weights()) == weights


def test_held_out_episodes_are_scored_with_the_trained_sigma(tmp_path: Path):
    runs = [
        train(tmp_path / f"{len(factors)}", validation=0.3, std_factors=factors)
        for factors in ((), (2.0,) * 7)
    ]
    assert len({fingerprint(run.read_weights()) for run in runs}) == 1
    assert read_factors(runs[0]) == read_factors(runs[1])


def test_sigma_of_camera_features_and_of_binary_actions_stays(tmp_path: Path):
    run, demos = train(tmp_path / "run"), make_robot_demos()
    record = run.read_record()
    spec = replace(record.spec, image_features=2, binary=((1, 0.0, 1.0),))
    run.save_record(replace(record, spec=spec))
    factors = measure_std_factors(run, demos, device="cpu")
    assert len(factors) == 2 + 3  # observation columns and actions
    assert [factor == 1.0 for factor in factors] == [False, False, False, True, False]
    states = torch.randn(5, 2, spec.dim, generator=torch.Generator().manual_seed(1))
    before = load_model(run)[1].predict_step(states).std
    assert scale_std(run, factors) == factors
    ratio = load_model(run)[1].predict_step(states).std / before
    expected = torch.tensor([*factors[:2], 1.0, 1.0, *factors[2:]]).expand(5, 7)
    torch.testing.assert_close(ratio, expected, rtol=1e-3, atol=0)


def test_factors_of_other_columns_are_not_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = train(tmp_path / "run", std_factors=(2.0,) * 5)
    assert "the preset is of 5 columns, not 7" in caplog.text
    assert read_factors(run) == []
    assert fingerprint(run.read_weights()) == fingerprint(train(tmp_path / "plain").read_weights())


def test_methods_without_sigma_have_no_factors(tmp_path: Path):
    config = RunConfig(model=NearestNeighboursConfig())
    run = train_run(make_robot_demos(), config, tmp_path / "run", options=TrainOptions(validation=0.3))
    assert read_factors(run) == []
