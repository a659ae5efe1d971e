"""Tests for nsde_policy/methods/regression.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.regression import Regression, RegressionConfig
from nsde_policy.training.loop import fit
from tests.helpers.method_checks import (
    check_loss,
    check_plan_rows,
    check_ramp_plans,
    make_robot_states,
    train_and_load,
)
from tests.helpers.rng import make_draws, make_rng
from tests.helpers.toy_problems import LINE, make_ramps, make_states, make_two_modes

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


def test_linear_actions_are_learned():
    model = build()
    fit(model, make_ramps(4000, model.config), FIT, seed=0)
    check_ramp_plans(model, steps=3, atol=0.3)


def test_two_demonstrated_modes_are_averaged():
    """Actions are 10 with probability (1 + o)/2, else −10: the mean is 10 o, which was never demonstrated."""
    model, n = build(), 8000
    obs = 2 * torch.rand(n, generator=make_rng(1)) - 1
    right = torch.rand(n, generator=make_rng(2)) < (1 + obs) / 2
    actions = torch.where(right, 10.0, -10.0)[:, None, None].expand(-1, 4, -1).clone()
    fit(model, Windows(make_states(obs, 2), actions), FIT, seed=0)
    test_obs = torch.linspace(-0.8, 0.8, 9)
    plan = model.plan(make_states(test_obs, 2), steps=3, draws=make_draws(9))
    torch.testing.assert_close(plan[..., 0], (10 * test_obs)[:, None].expand(-1, 3), atol=2.0, rtol=0)


def test_plan_is_one_network_call_from_the_current_period_on():
    model, calls = build(), []
    model.eval()
    model.network.register_forward_hook(lambda *_: calls.append(1))
    states = make_states(torch.linspace(-1, 1, 5), 2)
    plan = model.plan(states, steps=3, draws=make_draws(5))
    assert len(calls) == model.network_calls(3) == 1
    whole = model.network(model.layout.features(states).flatten(-2))
    torch.testing.assert_close(plan[..., 0], 20 * whole[:, 1:4])


def test_loss_needs_no_host_synchronisation_and_draws_only_from_its_generator():
    model = build(network=NetworkConfig(width=16, depth=2))
    check_loss(model, lambda: make_ramps(8, model.config), ("square",))


def test_run_is_saved_and_loaded_and_plans_depend_only_on_their_state(tmp_path: Path):
    _, model = train_and_load(RegressionConfig(network=NETWORK), tmp_path, chunk=8)
    check_plan_rows(model, make_robot_states(5, 2), steps=8, act_dim=3, deterministic=True)


def test_horizon_shorter_than_the_history_raises():
    with pytest.raises(ConfigError, match="need horizon >= history"):
        RegressionConfig(history=3, horizon=2)
