"""Tests for nsde_policy/methods/baselines/regression.py."""

import pytest
import torch

from nsde_policy.config import NetworkConfig
from nsde_policy.methods.baselines.regression import Regression, RegressionConfig
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import LINE, make_states, make_two_modes

CONFIG = RegressionConfig(horizon=4, network=NetworkConfig(width=32, depth=2, dropout=0.0))


def test_loss_is_the_mean_squared_error_of_the_planned_actions_in_half_ranges():
    model, data = Regression(CONFIG, LINE, generator=make_rng()), make_two_modes(16, CONFIG)
    states = make_states(torch.linspace(-1, 1, 5), 2)
    whole = model.network(model.layout.features(states).flatten(-2))
    plan = model.plan(states, steps=3, rng=make_batch_rng(5))
    torch.testing.assert_close(plan[..., 0], 20 * whole[:, 1:4])
    for parameter in model.network.output.parameters():
        torch.nn.init.zeros_(parameter)
    assert model.loss(data, make_rng())["square"].item() == pytest.approx(0.25)
