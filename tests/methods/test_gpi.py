"""Tests for nsde_policy/methods/baselines/gpi.py."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from nsde_policy.core.batches import Windows
from nsde_policy.core.spec import StateSpec
from nsde_policy.errors import ConfigError
from nsde_policy.methods.baselines.gpi import GPI, GPIConfig, GPISampling, rotate
from nsde_policy.tasks import get_task
from tests.helpers.rng import make_batch_rng, make_rng
from tests.helpers.toy_problems import LINE, make_states

PLANE = StateSpec(
    obs_dim=3, act_dim=2, circular=(2,), low=(0.0, 0.0, -4.0, 0.0, 0.0), high=(9.0, 9.0, 4.0, 9.0, 9.0),
    increment_std=(0.1,) * 5,
)  # fmt: skip
"""The pose of an object, and positions as actions."""
EXACT = GPISampling(noise=0.0)


def build(data: Windows, spec: StateSpec = LINE, **changes: Any) -> GPI:
    model = GPI(GPIConfig(**{"horizon": 4, "sampling": EXACT, **changes}), spec, generator=make_rng())
    model.prepare(data)
    return model.eval()


def make_demonstration(n: int = 30) -> Windows:
    """Make a demonstration that observes −1 … 1 and commands 2, 4, 6, …, without padding at its end."""
    commands = 2.0 * torch.arange(n + 4)
    states = torch.stack([torch.linspace(-1, 1, n), commands[:n]], dim=-1)[:, None]
    return Windows(states, commands.unfold(0, 4, 1)[1 : n + 1, :, None])


def plan(model: GPI, states: Tensor, steps: int = 4, **sampling: Any) -> Tensor:
    chosen = GPISampling(**{"noise": 0.0, **sampling})
    return model.plan(states, steps=steps, rng=make_batch_rng(len(states)), sampling=chosen)


@pytest.mark.parametrize("neighbours", [1, 3])
@pytest.mark.parametrize("attraction", [0.0, 0.3, 1.0])
def test_demonstrated_states_continue_the_demonstration(neighbours: int, attraction: float):
    data = make_demonstration()
    found = plan(build(data), data.states, neighbours=neighbours, attraction=attraction)
    torch.testing.assert_close(found, data.actions, rtol=0, atol=1e-3)


@pytest.mark.parametrize("attraction", [0.0, 0.3, 1.0])
def test_deviations_decay_by_the_attraction_per_period(attraction: float):
    data = make_demonstration()
    moved = data.states + torch.tensor([0.0, 5.0])
    error = plan(build(data), moved, attraction=attraction) - data.actions
    expected = 5 * (1 - attraction) ** torch.arange(1.0, 5.0)
    torch.testing.assert_close(error[..., 0], expected.expand(30, -1), rtol=0, atol=1e-4)


def test_flows_of_neighbours_are_weighted_by_inverse_distance():
    """At 0.1 and 0.3 from two states that command 10 and 20, the weights are 3/4 and 1/4."""
    data = Windows(
        make_states(torch.tensor([0.0, 0.4, 1.0]), 1), torch.tensor([10.0, 20.0, 0.0])[:, None, None]
    )
    found = plan(build(data, horizon=1), make_states(torch.tensor([0.1]), 1), steps=1, neighbours=2)
    assert found.item() == pytest.approx(12.5, abs=1e-4)


def test_noise_chooses_among_demonstrations_at_a_fork():
    data = Windows(make_states(torch.tensor([-0.1, 0.1]), 1), torch.tensor([-10.0, 10.0])[:, None, None])
    found = plan(build(data, horizon=1), make_states(torch.zeros(200), 1), steps=1, noise=0.05)
    assert set(found.flatten().tolist()) == {-10.0, 10.0}
    assert 0.35 < (found > 0).float().mean().item() < 0.65


def test_plans_turn_and_move_with_the_object():
    rng = make_rng()
    states = torch.cat([torch.rand(20, 1, 3, generator=rng), torch.rand(20, 1, 2, generator=rng)], dim=-1)
    data = Windows(states, torch.rand(20, 4, 2, generator=rng))
    model = build(data, PLANE, object_pose=(0, 1, 2))
    torch.testing.assert_close(plan(model, states), data.actions, rtol=0, atol=1e-5)
    shift, turn = torch.tensor([2e-3, -1e-3]), torch.tensor(1e-3)
    moved = states + torch.cat([shift, turn[None], torch.zeros(2)])
    centre = states[:, :, :2]
    expected = rotate(data.actions - centre, turn) + centre + shift
    torch.testing.assert_close(plan(model, moved), expected, rtol=0, atol=1e-5)


def test_angles_of_actions_are_followed_the_shorter_way_round():
    """A demonstration that turns from −3.1 by 0.1 per period, seen from the same angle plus one turn."""
    spec = StateSpec(
        obs_dim=1, act_dim=1, circular=(1,), low=(-1.0, -9.0), high=(1.0, 9.0), increment_std=(0.1, 0.1)
    )
    actions = -3.1 + 0.1 * torch.arange(1.0, 5.0)[None, :, None]
    model = build(Windows(make_states(torch.zeros(1), 1, previous=-3.1), actions), spec)
    start = 2 * math.pi - 3.1
    found = plan(model, make_states(torch.zeros(1), 1, previous=start))
    torch.testing.assert_close(found[0, :, 0], start + 0.1 * torch.arange(1.0, 5.0), rtol=0, atol=1e-5)


def test_presets_of_pusht_follow_the_block_if_it_is_observed():
    presets = get_task("pusht").training.presets("gpi")
    poses = {name: preset.model.to_dict()["object_pose"] for name, preset in presets.items()}
    assert poses == {"default": (2, 3, 4), "fast": (2, 3, 4), "pixels": None}


@pytest.mark.parametrize("spec", [PLANE, replace(PLANE, obs_dim=4, act_dim=1)])
def test_poses_that_do_not_fit_raise(spec: StateSpec):
    with pytest.raises(ConfigError, match=r"object_pose \(0, 1, 3\) needs .* got \d measured columns"):
        GPI(GPIConfig(object_pose=(0, 1, 3)), spec, generator=make_rng())
