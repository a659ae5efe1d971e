"""Tests of sampled paths: those of core/sde.py, bit for bit, and of the folded plan up to rounding."""

from dataclasses import replace

import pytest
import torch

from nsde_policy.config import NetworkConfig
from nsde_policy.core.sde import euler_maruyama
from nsde_policy.core.spec import StateSpec
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.folded_plan import FoldedPlan
from nsde_policy.methods.neural_sde.model import NeuralSDE
from tests.helpers.rng import make_rng

SPEC = StateSpec(
    obs_dim=3, act_dim=1, circular=(1,), low=(0.0, 0.0, -5.0, -1.0), high=(9.0, 6.3, 5.0, 1.0),
    increment_std=(0.5, 0.1, 0.2, 0.3),
)  # fmt: skip
LINEAR = replace(SPEC, circular=())
OFF = SamplingConfig(denoiser="off", diffusion=0.3)


def build(layout: StateSpec = SPEC, **changes: object) -> NeuralSDE:
    network = NetworkConfig(width=24, depth=3, dropout=0.1)
    config = NeuralSDEConfig(**{"network": network, **changes})  # type: ignore[arg-type]
    return NeuralSDE(config, layout, generator=make_rng()).eval()


def make_states(history: int, rows: int) -> torch.Tensor:
    return 3 * torch.randn(rows, history * 4, generator=make_rng(1))


MODELS = [
    build(),
    build(LINEAR),
    build(history=1),
    build(history=3, dt=0.1),
    build(sampling=SamplingConfig(alpha=0.7, diffusion=0.5)),
    build(sampling=OFF),
    build(sampling=SamplingConfig(alpha=0.0)),
    build(sampling=SamplingConfig(diffusion=0.0)),
    build(history=1, sampling=SamplingConfig(substeps=3)),
    build(sampling=SamplingConfig(substeps=2)),
    build(noise_kind="absolute", noise=0.05, variance_floor=0.3),
    build(network=NetworkConfig(width=16, depth=2, layer_norm=False, activation="tanh")),
    build(network=NetworkConfig(width=16, depth=1, activation="relu")),
    build(network=NetworkConfig(width=16, depth=2, activation="silu")),
    build(network=NetworkConfig(width=16, depth=3, residual=True)),
]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_sampled_paths_equal_those_of_the_solver_in_core_bit_for_bit(model: NeuralSDE, rows: int):
    sampling, x0 = model.config.sampling, make_states(model.config.history, rows)
    noise = torch.randn(5 * sampling.substeps, rows, 4, generator=make_rng(2))
    older = torch.zeros(*noise.shape[:2], x0.shape[1] - 4)
    options = {"dt": model.config.dt, "steps": 5, "substeps": sampling.substeps}
    with torch.no_grad():
        whole = euler_maruyama(model.sde(), x0, noise=torch.cat([noise, older], dim=-1), **options)
    sampled = model.sample_paths(x0, steps=5, noise=noise)
    assert torch.equal(sampled, whole[..., :4])
    assert sampled[1:].std() > 0.1


@pytest.mark.parametrize(
    "model", [m for m in MODELS if m.config.history == 1 or m.config.sampling.substeps == 1]
)
def test_folded_plan_equals_the_solver_up_to_rounding(model: NeuralSDE):
    sampling, history = model.config.sampling, model.config.history
    x = make_states(history, 1).reshape(history, 4)
    noise = torch.randn(5 * sampling.substeps, 4, generator=make_rng(2))
    folded = model.fold_for_export(sampling)
    assert isinstance(folded, FoldedPlan)
    actions, path, std = folded(x, noise)
    plain = model.sample_paths(x.flatten()[None], steps=5, noise=noise[:, None])[:, 0]
    torch.testing.assert_close(path, plain, rtol=1e-5, atol=1e-5)
    assert torch.equal(actions, path[1:, 3:])
    plain_std = model.futures_std(x[None], plain[None])[0, :, 3:]
    torch.testing.assert_close(std, plain_std, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        build(network=NetworkConfig(kind="separate", width=16, depth=2)),
        build(sampling=SamplingConfig(denoiser="cancelling")),
        build(learned_strength=True, sampling=SamplingConfig(denoiser="learned")),
    ],
)
def test_equations_without_constant_factors_are_not_folded(model: NeuralSDE):
    assert model.fold_for_export(model.config.sampling) is None


def test_history_with_several_substeps_is_not_folded():
    model = build(history=2, sampling=SamplingConfig(substeps=2))
    assert model.fold_for_export(model.config.sampling) is None
