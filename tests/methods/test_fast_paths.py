"""Tests for models/fast_paths.py: the same paths, bit for bit."""

from dataclasses import replace

import pytest
import torch

from nsde_policy.config import NetworkConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.methods.base import Draws
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.methods.neural_sde.fused_step import FastPaths
from nsde_policy.methods.neural_sde.model import NeuralSDE

SPEC = StateSpec(
    obs_dim=3, act_dim=1, circular=(1,), low=(0.0, 0.0, -5.0, -1.0), high=(9.0, 6.3, 5.0, 1.0),
    increment_std=(0.5, 0.1, 0.2, 0.3),
)  # fmt: skip
LINEAR = replace(SPEC, circular=())
OFF = SamplingConfig(denoiser="off", diffusion=0.3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(layout: StateSpec = SPEC, **changes: object) -> NeuralSDE:
    network = NetworkConfig(width=24, depth=3, dropout=0.1)
    config = NeuralSDEConfig(**{"network": network, **changes})  # type: ignore[arg-type]
    return NeuralSDE(config, layout, generator=seeded()).eval()


def states(history: int, rows: int) -> torch.Tensor:
    return 3 * torch.randn(rows, history * 4, generator=seeded(1))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "model",
    [
        build(),
        build(LINEAR),
        build(history=1),
        build(history=3, dt=0.1),
        build(sampling=SamplingConfig(alpha=0.7, diffusion=0.5)),
        build(sampling=OFF),
        build(sampling=SamplingConfig(alpha=0.0)),
        build(history=1, sampling=SamplingConfig(substeps=3)),
        build(sampling=SamplingConfig(substeps=2)),
        build(network=NetworkConfig(width=16, depth=2, layer_norm=False, activation="tanh")),
        build(network=NetworkConfig(width=16, depth=1, activation="relu")),
        build(network=NetworkConfig(width=16, depth=2, activation="silu")),
    ],
)
def test_fast_paths_are_the_solvers_bit_for_bit(model: NeuralSDE, rows: int):
    sampling, x0 = model.config.sampling, states(model.config.history, rows)
    noise = torch.randn(5 * sampling.substeps, rows, 4, generator=seeded(2))
    fast = FastPaths.of(model.learned, model.config, sampling)
    assert fast is not None
    slow = model.sample_paths(x0, steps=5, noise=noise)
    assert torch.equal(fast.sample(x0, noise), slow)
    assert slow[1:].std() > 0.1


@pytest.mark.parametrize(
    "model",
    [
        build(network=NetworkConfig(kind="separate", width=16, depth=2)),
        build(network=NetworkConfig(width=16, depth=2, residual=True)),
        build(sampling=SamplingConfig(denoiser="cancelling")),
        build(learned_strength=True, sampling=SamplingConfig(denoiser="learned")),
        build().train(),
    ],
)
def test_what_is_not_written_out_is_left_to_the_solver(model: NeuralSDE):
    assert FastPaths.of(model.learned, model.config, model.config.sampling) is None


def test_futures_are_the_same_either_way(monkeypatch: pytest.MonkeyPatch):
    model, x = build(), states(2, 2).reshape(2, 2, 4)

    def futures() -> torch.Tensor:
        return model.sample_futures(x, steps=4, draws=Draws([seeded(5), seeded(6)]))

    fast = futures()
    monkeypatch.setattr(FastPaths, "of", classmethod(lambda *_: None))
    assert torch.equal(futures(), fast)
