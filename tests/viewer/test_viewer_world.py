"""Tests for nsde_policy/viewer/simulation.py, and for the hand of envs/pusht."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.errors import EnvInputError
from nsde_policy.viewer import simulation as worlds
from nsde_policy.viewer.simulation import Deed, World


def deeds(n: int, seed: int = 0) -> list[Deed]:
    """Wild commands, now and then a hand, now and then rest."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        x, y, turn, kind = rng.uniform(0, 512), rng.uniform(0, 512), rng.uniform(-4, 4), rng.random()
        hand = (float(y), float(x), float(turn)) if kind < 0.2 else None
        found.append(Deed(None) if kind > 0.9 else Deed((float(x), float(y)), hand))
    return found


def play(world: World, what: list[Deed]) -> list[np.ndarray]:
    seen = []
    for deed in what:
        world.advance(deed)
        seen.append(world.now.obs)
    return seen


def test_a_period_is_that_of_the_environment_bit_for_bit():
    world, env = World(7), PushTEnv()
    env.reset(seed=7)
    for x, y in np.random.default_rng(1).uniform(0, 512, (60, 2)):
        world.advance(Deed((float(x), float(y))))
        obs, _, _, _, info = env.step(np.array([x, y]))
        assert np.array_equal(world.now.obs, obs)
        assert world.now.coverage == info["coverage"]
        assert world.trail[-1] == obs.tolist()


@pytest.mark.parametrize("back", [0, 1, 17, 60])
def test_a_moment_of_the_past_is_restored_exactly_and_the_same_future_follows(back):
    world, what = World(3), deeds(60)
    seen = play(world, what)
    world.restore(60 - back)
    assert world.last == 60 - back
    if back < 60:
        assert np.array_equal(world.now.obs, seen[59 - back])
    again = play(world, what[60 - back :])
    assert all(np.array_equal(a, b) for a, b in zip(again, seen[60 - back :], strict=True))


def test_the_past_is_bounded_and_what_is_left_of_it_can_still_be_restored(monkeypatch):
    monkeypatch.setattr(worlds, "HISTORY", 20)
    world, what = World(5), deeds(75)
    seen = play(world, what)
    assert world.last == 75
    assert 20 <= world.last - world.first <= 40
    assert len(world.coverage) == world.last - world.first + 1
    for period in (65, 60, 55, world.first + 1):
        world.restore(period)
        assert np.array_equal(world.now.obs, seen[period - 1])


def test_a_seed_that_is_refused_changes_nothing():
    world, untouched, what = World(5), World(5), deeds(6)
    play(world, what[:3])
    with pytest.raises(EnvInputError, match="below"):
        world.reset(2**32)
    assert (world.seed, world.last) == (5, 3)
    play(world, what[3:])
    assert np.array_equal(world.now.obs, play(untouched, what)[-1])


def test_the_first_success_is_remembered_until_somebody_goes_back_before_it(monkeypatch):
    monkeypatch.setattr(worlds, "HISTORY", 20)
    world = World(5)
    home, away = Deed((20.0, 20.0), geometry.GOAL_POSE), Deed((20.0, 20.0), (400.0, 400.0, 0.0))
    play(world, [away] * 7 + [home] + [away] * 2 + [home])
    assert [world.at(period).solved for period in range(12)] == [period in (8, 11) for period in range(12)]
    assert [world.solved_s(period) for period in (7, 8, 10, 11)] == [None, 0.8, 0.8, 0.8]
    play(world, [away] * 40)
    assert world.first > 8
    assert world.solved_s(world.last) == 0.8
    again = World(5)
    play(again, [away] * 7 + [home] * 2)
    again.restore(7)
    play(again, [away] * 5)
    assert again.solved_s(again.last) is None


@settings(max_examples=60, deadline=None)
@given(
    x=st.floats(-1e4, 1e4),
    y=st.floats(-1e4, 1e4),
    angle=st.floats(-100, 100),
    seed=st.integers(0, 50),
)
def test_a_hand_leaves_the_block_on_the_table_and_beside_the_agent(x, y, angle, seed):
    env = PushTEnv()
    obs, _ = env.reset(seed=seed)
    env.hold_block((x, y, angle))
    obs, _ = env.advance(np.asarray(obs)[:2], 1)
    corners = np.array(geometry.to_world(geometry.OUTLINE, obs[2:]))
    assert np.isfinite(obs).all()
    assert corners.min() > 5
    assert corners.max() < 507
    for _ in range(30):
        obs, _ = env.advance(obs[:2], 1)
    moved = geometry.move_clear(obs[2:], obs[:2])
    assert math.dist(moved[:2], obs[2:4]) < 2.0, "the solver and the hand agree on what is clear"


def test_a_block_far_from_agent_and_walls_is_put_exactly_where_the_hand_is():
    env = PushTEnv()
    env.reset(options={"state": [50, 50, 300, 300, 0]})
    env.hold_block((250.5, 200.25, 1.5))
    obs, _ = env.advance(np.array([50.0, 50.0]), 1)
    assert obs[2:].tolist() == pytest.approx([250.5, 200.25, 1.5])


@pytest.mark.parametrize("pose", [(math.nan, 0, 0), (0, 0, math.inf), (1, 2), "abc", None])
def test_a_hand_that_is_nowhere_is_refused(pose):
    env = PushTEnv()
    env.reset(seed=0)
    with pytest.raises(EnvInputError, match="a pose of the block"):
        env.hold_block(pose)
