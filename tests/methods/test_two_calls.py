"""Tests for baselines/mip.py and baselines/l1_flow.py: both predict a chunk in two network calls."""

from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.batches import Windows
from nsde_policy.methods.baselines.l1_flow import L1FlowConfig, sample_times
from nsde_policy.methods.baselines.mip import MIP, MIPConfig
from nsde_policy.methods.registry import get_method
from nsde_policy.training.fit import fit
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import LINE, RecordingNetwork, make_states, make_two_modes

NETWORK = NetworkConfig(width=32, depth=2, dropout=0.0)
SHORT = TrainConfig(steps=250, batch_size=128, learning_rate=1e-2, ema=0.98)


def build(kind: type[MIPConfig], **changes: Any) -> MIP:
    config = kind(**{"horizon": 4, "network": NETWORK, **changes})
    model: MIP = get_method(config.method).model_class()(config, LINE, generator=make_rng())
    return model


def test_second_call_gets_actions_scaled_by_t_star_with_noise():
    model = build(MIPConfig, time=0.8)
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


def test_training_points_lie_between_noise_and_actions():
    model = build(L1FlowConfig)
    model.network = recorder = RecordingNetwork(4, 0.5)  # type: ignore[assignment]
    data = make_two_modes(20_000, model.config)
    loss = model.loss(data, make_rng())["absolute"]
    (inputs,) = recorder.inputs
    time = inputs[:, 8:]
    noise = (inputs[:, 4:8] - time * data.actions[..., 0] / 20) / (1 - time)
    early = noise[time[:, 0] < 0.8]
    assert early.mean().item() == pytest.approx(0, abs=0.02)
    assert early.std().item() == pytest.approx(1, rel=0.02)
    torch.testing.assert_close(loss, (0.5 - data.actions / 20).abs().mean())


def test_training_times_are_logit_normal_with_a_uniform_share():
    times = sample_times(200_000, make_rng())
    assert bool(((times > 0) & (times < 1)).all())
    for limit, logit in ((0.1, -2.1972), (0.5, 0.0), (0.9, 2.1972)):
        normal = torch.special.ndtr(torch.tensor(logit)).item()
        assert (times < limit).float().mean().item() == pytest.approx(0.99 * normal + 0.01 * limit, abs=0.004)


@pytest.mark.parametrize(("kind", "is_noisy"), [(MIPConfig, 0.0), (L1FlowConfig, 1.0)])
def test_second_call_starts_between_noise_and_the_first_result(kind: type[MIPConfig], is_noisy: float):
    model = build(kind, time=0.4)
    model.network = recorder = RecordingNetwork(4, 0.5)  # type: ignore[assignment]
    plan = model.plan(make_states(torch.zeros(3), 2), steps=2, rng=make_batch_rng(3))
    assert len(recorder.inputs) == model.network_calls(2) == 2
    first, second = (inputs[:, 4:] for inputs in recorder.inputs)
    noise = is_noisy * make_batch_rng(3).normal(4)
    torch.testing.assert_close(first, torch.cat([noise, torch.zeros(3, 1)], dim=-1))
    torch.testing.assert_close(second, torch.cat([0.6 * noise + 0.4 * 0.5, torch.full((3, 1), 0.4)], dim=-1))
    torch.testing.assert_close(plan, torch.full((3, 2, 1), 10.0))


@pytest.mark.slow
def test_prediction_from_noise_is_the_conditional_median():
    """Actions are twice the observation, or 15 more in one case of four; their mean would be 3.75 off."""
    model = build(L1FlowConfig, horizon=1, history=1)
    obs = 2 * torch.rand(4000, generator=make_rng(1)) - 1
    more = 15.0 * (torch.rand(4000, generator=make_rng(2)) < 0.25)
    fit(model, Windows(make_states(obs, 1), (2 * obs + more)[:, None, None]), SHORT, seed=0)
    seen = torch.linspace(-0.8, 0.8, 40)
    features = model.layout.features(make_states(seen, 1)).flatten(-2)
    with torch.no_grad():
        found = model.network(torch.cat([features, make_batch_rng(40).normal(1), torch.zeros(40, 1)], dim=-1))
    assert (20 * found[:, 0] - 2 * seen).abs().mean().item() < 0.8
