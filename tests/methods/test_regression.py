"""Tests for nsde_policy/methods/regression.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.core.targets import Windows
from nsde_policy.errors import ConfigError
from nsde_policy.methods.regression import Regression, RegressionConfig
from nsde_policy.training.loop import fit
from tests.helpers.toy_problems import (
    LINE,
    draws,
    ramps,
    robot_states,
    seeded,
    states_of,
    trained_and_loaded,
    two_ways,
)

NETWORK = NetworkConfig(width=32, depth=2, dropout=0.0)
FIT = TrainConfig(steps=600, batch_size=256, learning_rate=3e-3, ema=0.98)


def build(**changes: Any) -> Regression:
    return Regression(
        RegressionConfig(**{"horizon": 4, "network": NETWORK, **changes}), LINE, generator=seeded()
    )


def test_the_loss_is_the_mean_square_error_in_half_ranges():
    model = build()
    for parameter in model.network.output.parameters():
        torch.nn.init.zeros_(parameter)
    data = two_ways(16, model.config)
    assert model.loss(data, seeded()).parts["square"].item() == pytest.approx(0.25)


def test_it_learns_a_linear_law():
    model = build()
    fit(model, ramps(4000, model.config), FIT, seed=0)
    obs = torch.linspace(-0.9, 0.9, 7)
    plan = model.plan(states_of(obs, 2), steps=3, draws=draws(7))
    torch.testing.assert_close(plan[..., 0], 3 * obs[:, None] * torch.arange(1, 4), atol=0.3, rtol=0)


def test_where_two_ways_were_shown_it_takes_neither_but_their_mean():
    """To the right with chance (1 + o)/2 where o is seen: the mean is 10 o, which nobody did."""
    model, n = build(), 8000
    obs = 2 * torch.rand(n, generator=seeded(1)) - 1
    right = torch.rand(n, generator=seeded(2)) < (1 + obs) / 2
    actions = torch.where(right, 10.0, -10.0)[:, None, None].expand(-1, 4, -1).clone()
    fit(model, Windows(states_of(obs, 2), actions), FIT, seed=0)
    seen = torch.linspace(-0.8, 0.8, 9)
    plan = model.plan(states_of(seen, 2), steps=3, draws=draws(9))
    torch.testing.assert_close(plan[..., 0], (10 * seen)[:, None].expand(-1, 3), atol=2.0, rtol=0)


def test_a_plan_is_one_call_from_the_present_on():
    model, calls = build(), []
    model.eval()
    model.network.register_forward_hook(lambda *_: calls.append(1))
    states = states_of(torch.linspace(-1, 1, 5), 2)
    plan = model.plan(states, steps=3, draws=draws(5))
    assert len(calls) == model.network_calls(3) == 1
    whole = model.network(model.layout.features(states).flatten(-2))
    torch.testing.assert_close(plan[..., 0], 20 * whole[:, 1:4])


def test_the_loss_never_waits_for_its_data_and_draws_from_its_generator_alone():
    model = build(network=NetworkConfig(width=16, depth=2))
    before = torch.random.get_rng_state()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(ramps(8, model.config), seeded()).total(("square",)).shape == ()
    one, two = (model.loss(ramps(8, model.config), seeded()).parts for _ in range(2))
    assert torch.equal(one["square"], two["square"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_run_saves_loads_and_answers_each_row_for_itself_whatever_is_drawn(tmp_path: Path):
    _, model = trained_and_loaded(RegressionConfig(network=NETWORK), tmp_path, chunk=8)
    states = robot_states(5, 2)
    whole = model.plan(states, steps=8, draws=draws(5))
    parts = [model.plan(row[None], steps=8, draws=draws(1, seed=9)) for row in states]
    assert whole.shape == (5, 8, 3)
    torch.testing.assert_close(whole, torch.cat(parts))


def test_a_horizon_shorter_than_the_history_is_refused():
    with pytest.raises(ConfigError, match="need horizon >= history"):
        RegressionConfig(history=3, horizon=2)
