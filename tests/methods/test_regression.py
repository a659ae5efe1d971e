"""Tests for nsde_policy/methods/regression.py."""

from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.methods.regression import Regression, RegressionConfig
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import LINE, make_states, make_two_modes

NETWORK = NetworkConfig(width=32, depth=2, dropout=0.0)
FIT = TrainConfig(steps=250, batch_size=128, learning_rate=1e-2, ema=0.98)


def build(**changes: Any) -> Regression:
    return Regression(
        RegressionConfig(**{"horizon": 4, "network": NETWORK, **changes}), LINE, generator=make_rng()
    )


def test_loss_is_the_mean_squared_error_in_half_ranges():
    model = build()
    for parameter in model.network.output.parameters():
        torch.nn.init.zeros_(parameter)
    data = make_two_modes(16, model.config)
    assert model.loss(data, make_rng()).parts["square"].item() == pytest.approx(0.25)


def test_plan_is_one_network_call_from_the_current_period_on():
    model, calls = build(), []
    model.eval()
    model.network.register_forward_hook(lambda *_: calls.append(1))
    states = make_states(torch.linspace(-1, 1, 5), 2)
    plan = model.plan(states, steps=3, draws=make_draws(5))
    assert len(calls) == model.network_calls(3) == 1
    whole = model.network(model.layout.features(states).flatten(-2))
    torch.testing.assert_close(plan[..., 0], 20 * whole[:, 1:4])


def test_horizon_shorter_than_the_history_raises():
    with pytest.raises(ConfigError, match="need horizon >= history"):
        RegressionConfig(history=3, horizon=2)
