"""Tests for nsde_policy/methods/neural_sde/folded_plan.py."""

from dataclasses import replace

import pytest
import torch

from nsde_policy.config import NetworkConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.folded_plan import FoldedPlan
from nsde_policy.methods.neural_sde.model import NeuralSDE
from tests.helpers.rng import make_rng

SPEC = StateSpec(
    obs_dim=3, act_dim=1, circular=(1,), low=(0.0, 0.0, -5.0, -1.0), high=(9.0, 6.3, 5.0, 1.0),
    increment_std=(0.5, 0.1, 0.2, 0.3),
)  # fmt: skip


def build(layout: StateSpec = SPEC, **changes: object) -> NeuralSDE:
    network = NetworkConfig(width=24, depth=3, dropout=0.1)
    config = NeuralSDEConfig(**{"network": network, **changes})  # type: ignore[arg-type]
    return NeuralSDE(config, layout, generator=make_rng()).eval()


MODELS = [
    build(),
    build(replace(SPEC, circular=())),
    build(history=3, dt=0.1, sampling=SamplingConfig(alpha=0.7, diffusion=0.5)),
    build(sampling=SamplingConfig(alpha=0.0, diffusion=0.3)),
    build(history=1, sampling=SamplingConfig(substeps=3, diffusion=0.0)),
    build(noise_kind="absolute", noise=0.05, variance_floor=0.3),
    build(network=NetworkConfig(width=16, depth=1, layer_norm=False, activation="relu")),
]


@pytest.mark.parametrize("model", MODELS)
def test_folded_plan_equals_the_solver_up_to_rounding(model: NeuralSDE):
    sampling, history = model.config.sampling, model.config.history
    x = 3 * torch.randn(2, history, 4, generator=make_rng(1))
    noise = torch.randn(2, 5 * sampling.substeps, 4, generator=make_rng(2))
    folded = model.fold_for_export(sampling)
    assert isinstance(folded, FoldedPlan)
    actions, path, std = folded(x, noise)
    plain = model.sample_paths(x.flatten(1), steps=5, noise=noise.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(path, plain, rtol=1e-5, atol=1e-5)
    assert torch.equal(actions, path[:, 1:, 3:])
    plain_std = model.futures_std(x, plain)[..., 3:]
    torch.testing.assert_close(std, plain_std, rtol=1e-4, atol=1e-6)
    assert std.min() > 0, "also where paths are sampled without noise"


@pytest.mark.parametrize(
    "model",
    [
        build(network=NetworkConfig(kind="separate", width=16, depth=2)),
        build(history=2, sampling=SamplingConfig(substeps=2)),
    ],
)
def test_equations_without_constant_factors_are_not_folded(model: NeuralSDE):
    assert model.fold_for_export(model.config.sampling) is None
