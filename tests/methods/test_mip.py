"""Tests for nsde_policy/methods/mip.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.errors import ConfigError
from nsde_policy.methods.mip import MIP, MIPConfig
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
SHORT = TrainConfig(steps=600, batch_size=256, learning_rate=3e-3, ema=0.98)


def build(**changes: Any) -> MIP:
    return MIP(MIPConfig(**{"horizon": 4, "network": NETWORK, **changes}), LINE, generator=seeded())


class Asked(nn.Module):
    """Answers with zeros, and remembers what it was shown."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs, self.shown = outputs, []

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        self.shown.append(x)
        return x.new_zeros(len(x), self.outputs) + 0.5


def test_the_second_look_is_shown_the_actions_shrunk_and_blurred_by_t_star():
    model = build(time=0.8)
    model.network = asked = Asked(4)  # type: ignore[assignment]
    data = two_ways(20_000, model.config)
    parts = model.loss(data, seeded()).parts
    (shown,) = asked.shown
    first, second = shown[:, 4:8].chunk(2)
    assert bool((first == 0).all())
    assert bool((shown[:20_000, -1] == 0).all())
    assert bool((shown[20_000:, -1] == 0.8).all())
    noise = second - 0.8 * data.actions[..., 0] / 20
    assert noise.mean().item() == pytest.approx(0, abs=0.003)
    assert noise.std().item() == pytest.approx(0.2, rel=0.01)
    expected = (0.5 - data.actions / 20).square().mean()
    torch.testing.assert_close(parts["first"], expected)
    torch.testing.assert_close(parts["second"], expected)


def test_velocity_weights_divide_the_errors_by_t_star_and_what_is_left_of_it():
    data = two_ways(64, build().config)
    equal = build(time=0.8).loss(data, seeded()).parts
    velocity = build(time=0.8, weighting="velocity").loss(data, seeded()).parts
    torch.testing.assert_close(velocity["first"], equal["first"] / 0.8**2)
    torch.testing.assert_close(velocity["second"], equal["second"] / 0.2**2)


def test_a_plan_is_two_calls_the_second_of_which_sees_the_first_one_s_answer():
    model = build()
    model.network = asked = Asked(4)  # type: ignore[assignment]
    plan = model.plan(states_of(torch.zeros(3), 2), steps=2, draws=draws(3))
    assert len(asked.shown) == model.network_calls(2) == 2
    assert bool((asked.shown[0][:, 4:] == 0).all())
    torch.testing.assert_close(asked.shown[1][:, 4:], torch.tensor([0.45] * 4 + [0.9]).expand(3, -1))
    torch.testing.assert_close(plan, torch.full((3, 2, 1), 10.0))


@pytest.mark.slow
def test_it_learns_a_linear_law():
    model = build()
    fit(model, ramps(4000, model.config), SHORT, seed=0)
    obs = torch.linspace(-0.9, 0.9, 7)
    plan = model.plan(states_of(obs, 2), steps=3, draws=draws(7))
    torch.testing.assert_close(plan[..., 0], 3 * obs[:, None] * torch.arange(1, 4), atol=0.5, rtol=0)


@pytest.mark.slow
def test_the_second_look_keeps_to_the_way_its_guess_points_to():
    """The posterior mean of ±a given t*(±a) + noise is ±a again; the first guess, without a side, is 0."""
    model = build()
    fit(model, two_ways(4000, model.config), SHORT, seed=0)
    features = model.layout.features(states_of(torch.zeros(2), 2)).flatten(-2)
    side = torch.tensor([[1.0], [-1.0]]).expand(-1, 4)
    ask = torch.cat([features, 0.9 * 0.4 * side, torch.full((2, 1), 0.9)], dim=-1)
    with torch.no_grad():
        torch.testing.assert_close(model.network(ask), 0.5 * side, atol=0.05, rtol=0)
        blank = torch.cat([features, torch.zeros(2, 5)], dim=-1)
        torch.testing.assert_close(model.network(blank), torch.zeros(2, 4), atol=0.05, rtol=0)


def test_the_loss_never_waits_for_its_data_and_draws_from_its_generator_alone():
    model = build(network=NetworkConfig(width=16, depth=2))
    before = torch.random.get_rng_state()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert model.loss(two_ways(8, model.config), seeded()).total(("first", "second")).shape == ()
    one, two = (model.loss(two_ways(8, model.config), seeded()).parts for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_run_saves_loads_and_answers_each_row_for_itself(tmp_path: Path):
    _, model = trained_and_loaded(MIPConfig(network=NETWORK), tmp_path, chunk=8)
    states = robot_states(5, 2)
    whole = model.plan(states, steps=8, draws=draws(5))
    parts = [model.plan(row[None], steps=8, draws=draws(1, seed=9)) for row in states]
    assert whole.shape == (5, 8, 3)
    torch.testing.assert_close(whole, torch.cat(parts))


@pytest.mark.parametrize("changes", [{"time": 0.0}, {"time": 1.0}, {"horizon": 1}])
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any]):
    with pytest.raises(ConfigError):
        MIPConfig(**changes)
