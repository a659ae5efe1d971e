"""Tests for nsde_policy/trainer.py."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, NeuralSDEConfig, SamplingConfig, TrainConfig
from nsde_policy.layout import LayoutSpec
from nsde_policy.models import NeuralSDE
from nsde_policy.targets import Transitions, transitions
from nsde_policy.trainer import fit, learning_rate


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def line() -> Transitions:
    """Points that move right along y = 0, one unit per period, from anywhere in [0, 10]."""
    start = 10 * torch.rand(2000, 1, generator=seeded())
    x = torch.cat([start, torch.zeros_like(start)], dim=-1)
    step = torch.randn(2000, 2, generator=seeded(1)) * torch.tensor([0.1, 0.1])
    return transitions(torch.stack([x, x + torch.tensor([1.0, 0.0]) + step]))


def build(**changes: Any) -> NeuralSDE:
    data = line()
    network = NetworkConfig(width=32, depth=2, dropout=0.0)
    config = NeuralSDEConfig(**{"history": 1, "noise": 2.0, "network": network, **changes})
    return NeuralSDE(config, LayoutSpec.fit(data.x, data.x_next), generator=seeded())


SHORT = TrainConfig(steps=600, batch_size=256, learning_rate=3e-3, ema=0.98, log_every=50)


def test_fitting_lowers_every_part_of_the_loss():
    record = fit(build(learned_strength=True), line(), SHORT, seed=0)
    assert record.steps == [*range(0, 600, 50), 599]
    assert set(record.losses) == {"flow", "diffusion", "denoiser", "strength"}
    for values in record.losses.values():
        assert sum(values[-4:]) < sum(values[:4])


@pytest.mark.parametrize("schedule", ["together", "sequential"])
def test_the_fitted_denoiser_brings_strayed_paths_back_to_the_data(schedule: Any):
    network = NetworkConfig(kind="separate", width=32, depth=2, dropout=0.0)
    model = build(schedule=schedule, network=network)
    fit(model, line(), dataclasses.replace(SHORT, steps=900), seed=0)
    strayed = torch.tensor([[2.0, 0.15], [4.0, -0.15], [6.0, 0.15]])
    flow_only = SamplingConfig(denoiser="off", diffusion=0.0)
    with_denoiser = SamplingConfig(denoiser="constant", alpha=1.0, diffusion=0.0)
    free = model.sample_paths(strayed, steps=2, generator=seeded(), sampling=flow_only)[-1]
    held = model.sample_paths(strayed, steps=2, generator=seeded(), sampling=with_denoiser)[-1]
    assert held[:, 1].abs().max() < 0.5 * free[:, 1].abs().min()
    torch.testing.assert_close(held[:, 0], strayed[:, 0] + 2, atol=0.3, rtol=0)


def test_one_seed_gives_the_same_weights_bit_for_bit_and_no_global_randomness():
    config = TrainConfig(steps=20, batch_size=64)
    before = torch.random.get_rng_state()
    models = [build(network=NetworkConfig(width=16, depth=2, dropout=0.2)) for _ in range(3)]
    for model, seed in zip(models, (3, 3, 4), strict=True):
        fit(model, line(), config, seed=seed)
    one, same, other = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in models)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_callback_sees_every_record():
    seen: list[int] = []

    def callback(step: int, losses: Mapping[str, float]) -> None:
        assert set(losses) == {"flow", "diffusion", "denoiser"}
        seen.append(step)

    record = fit(
        build(), line(), TrainConfig(steps=25, batch_size=32, log_every=10), seed=0, callback=callback
    )
    assert seen == record.steps == [0, 10, 20, 24]


def test_without_averaging_the_last_weights_are_kept():
    plain, averaged = build(), build()
    config = TrainConfig(steps=50, batch_size=64, ema=0.0)
    fit(plain, line(), config, seed=0)
    fit(averaged, line(), TrainConfig(steps=50, batch_size=64, ema=0.999), seed=0)
    one, two = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in (plain, averaged))
    assert not torch.allclose(one, two)


def test_the_rate_rises_linearly_and_falls_to_nothing_along_a_cosine():
    config = TrainConfig(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(step, 100, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert rates[-1] < 0.001
