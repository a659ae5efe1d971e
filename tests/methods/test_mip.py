"""Tests for nsde_policy/methods/baselines/mip.py."""

from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.methods.baselines.mip import MIP, MIPConfig
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import LINE, RecordingNetwork, make_states, make_two_modes

NETWORK = NetworkConfig(width=32, depth=2, dropout=0.0)
SHORT = TrainConfig(steps=250, batch_size=128, learning_rate=1e-2, ema=0.98)


def build(**changes: Any) -> MIP:
    return MIP(MIPConfig(**{"horizon": 4, "network": NETWORK, **changes}), LINE, generator=make_rng())


def test_second_call_gets_actions_scaled_by_t_star_with_noise():
    model = build(time=0.8)
    model.network = recorder = RecordingNetwork(4, 0.5)  # type: ignore[assignment]
    data = make_two_modes(20_000, model.config)
    parts = model.loss(data, make_rng())
    (inputs,) = recorder.inputs
    first, second = inputs[..., 4:8]
    assert bool((first == 0).all())
    assert bool((inputs[0, :, -1] == 0).all())
    assert bool((inputs[1, :, -1] == 0.8).all())
    noise = second - 0.8 * data.actions[..., 0] / 20
    assert noise.mean().item() == pytest.approx(0, abs=0.003)
    assert noise.std().item() == pytest.approx(0.2, rel=0.01)
    expected = (0.5 - data.actions / 20).square().mean()
    torch.testing.assert_close(parts["first"], expected)
    torch.testing.assert_close(parts["second"], expected)


def test_plan_makes_two_calls_and_the_second_gets_the_first_result():
    model = build()
    model.network = recorder = RecordingNetwork(4, 0.5)  # type: ignore[assignment]
    plan = model.plan(make_states(torch.zeros(3), 2), steps=2, rng=make_batch_rng(3))
    assert len(recorder.inputs) == model.network_calls(2) == 2
    assert bool((recorder.inputs[0][:, 4:] == 0).all())
    torch.testing.assert_close(recorder.inputs[1][:, 4:], torch.tensor([0.45] * 4 + [0.9]).expand(3, -1))
    torch.testing.assert_close(plan, torch.full((3, 2, 1), 10.0))
