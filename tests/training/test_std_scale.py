"""Tests for training/std_scale.py: σ is scaled to held-out episodes, once, and in every command."""

from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.data.split import split_episodes
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.methods.neural_sde.model import NeuralSDE
from nsde_policy.policy.loading import load_model
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.dataset import TrainingSet, build_transitions, measure_state_spec
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.std_scale import fit_factors, measure_errors
from nsde_policy.training.train import train_run
from tests.helpers.toy_problems import make_robot_demos

CONFIG = RunConfig(
    model=NeuralSDEConfig(network=NetworkConfig(width=16, depth=2, dropout=0.0)),
    train=TrainConfig(steps=20, batch_size=16, log_every=10),
)


def train(path: Path, *, resume: bool = False) -> RunDirectory:
    options = TrainOptions(seed=3, validation=0.2, scale_std=0.3, resume=resume)
    return train_run(make_robot_demos(), CONFIG, path, options=options)


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


def test_scaled_run_fits_the_held_out_episodes_and_resumes(tmp_path: Path):
    run = train(tmp_path / "run")
    known, held_out = split_episodes(make_robot_demos(), 0.2, seed=3)
    _, places = split_episodes(known, 0.3, seed=3)
    record, model = load_model(run)
    assert record.demos.held_out == held_out
    pairs = build_transitions(known.select(places), record.config.demos, history=2, final_action_weight=1.0)
    errors = measure_errors(model, pairs, 2, record.spec.circular)
    needed = fit_factors(errors, (pairs.weight > 0).numpy())
    np.testing.assert_allclose(needed, 1.0, rtol=0.02)
    weights = run.read_weights()
    train(tmp_path / "run", resume=True)
    again = run.read_weights()
    assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--policy knn --preset fast --scale-std 0.1", "the method knn reports no σ to scale"),
        ("--task pusht --demos missing.zarr --scale-std 1", "need --scale-std < 1.0, got 1.0"),
    ],
)
def test_what_cannot_be_scaled_is_refused_before_demonstrations_are_read(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["train", *flags.split(), "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
