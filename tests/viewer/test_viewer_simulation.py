"""Tests for nsde_policy/viewer/simulation.py, and for dragging the block in envs/pusht/env.py."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.errors import EnvError
from nsde_policy.tasks import get_task
from nsde_policy.viewer import simulation as simulation_module
from nsde_policy.viewer.simulation import Input, Simulation

PUSHT = get_task("pusht")


def random_inputs(n: int, seed: int = 0) -> list[Input]:
    """Return random targets, some with a drag and some at rest."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        x, y, turn, kind = rng.uniform(0, 512), rng.uniform(0, 512), rng.uniform(-4, 4), rng.random()
        hand = (float(y), float(x), float(turn)) if kind < 0.2 else None
        found.append(Input(None) if kind > 0.9 else Input((float(x), float(y)), hand))
    return found


def play(simulation: Simulation, inputs: list[Input]) -> list[np.ndarray]:
    seen = []
    for each in inputs:
        simulation.advance(each)
        seen.append(simulation.now.state)
    return seen


def test_a_period_equals_that_of_the_environment_bit_for_bit():
    simulation, env = Simulation(PUSHT, 7), PushTEnv()
    env.reset(seed=7)
    for x, y in np.random.default_rng(1).uniform(0, 512, (60, 2)):
        simulation.advance(Input((float(x), float(y))))
        obs, _, _, _, info = env.step(np.array([x, y]))
        assert np.array_equal(simulation.now.state, obs)
        assert simulation.now.progress == info["coverage"]
        assert simulation.trail[-1] == simulation.table.describe(obs)


@pytest.mark.parametrize("back", [0, 1, 17, 60])
def test_a_past_period_is_restored_exactly_and_replays_the_same_future(back):
    simulation, inputs = Simulation(PUSHT, 3), random_inputs(60)
    seen = play(simulation, inputs)
    simulation.restore(60 - back)
    assert simulation.last == 60 - back
    if back < 60:
        assert np.array_equal(simulation.now.state, seen[59 - back])
    again = play(simulation, inputs[60 - back :])
    assert all(np.array_equal(a, b) for a, b in zip(again, seen[60 - back :], strict=True))


def test_history_is_bounded_and_every_period_in_it_can_be_restored(monkeypatch):
    monkeypatch.setattr(simulation_module, "HISTORY_PERIODS", 20)
    simulation, inputs = Simulation(PUSHT, 5), random_inputs(75)
    seen = play(simulation, inputs)
    assert simulation.last == 75
    assert 20 <= simulation.last - simulation.first <= 40
    assert len(simulation.progress) == simulation.last - simulation.first + 1
    for period in (65, 60, 55, simulation.first + 1):
        simulation.restore(period)
        assert np.array_equal(simulation.now.state, seen[period - 1])


def test_an_invalid_seed_changes_nothing():
    simulation, untouched, inputs = Simulation(PUSHT, 5), Simulation(PUSHT, 5), random_inputs(6)
    play(simulation, inputs[:3])
    with pytest.raises(EnvError, match="below"):
        simulation.reset(2**32)
    assert (simulation.seed, simulation.last) == (5, 3)
    play(simulation, inputs[3:])
    assert np.array_equal(simulation.now.state, play(untouched, inputs)[-1])


def test_first_success_is_kept_until_a_period_before_it_is_restored(monkeypatch):
    monkeypatch.setattr(simulation_module, "HISTORY_PERIODS", 20)
    simulation = Simulation(PUSHT, 5)
    home, away = Input((20.0, 20.0), geometry.GOAL_POSE), Input((20.0, 20.0), (400.0, 400.0, 0.0))
    play(simulation, [away] * 7 + [home] + [away] * 2 + [home])
    assert [simulation.describe(period)["solved"] for period in range(12)] == [
        period in (8, 11) for period in range(12)
    ]
    assert [simulation.describe(period)["solved_s"] for period in (7, 8, 10, 11)] == [None, 0.8, 0.8, 0.8]
    play(simulation, [away] * 40)
    assert simulation.first > 8
    assert simulation.describe(simulation.last)["solved_s"] == 0.8
    again = Simulation(PUSHT, 5)
    play(again, [away] * 7 + [home] * 2)
    again.restore(7)
    play(again, [away] * 5)
    assert again.describe(again.last)["solved_s"] is None


@settings(max_examples=60, deadline=None)
@given(
    x=st.floats(-1e4, 1e4),
    y=st.floats(-1e4, 1e4),
    angle=st.floats(-100, 100),
    seed=st.integers(0, 50),
)
def test_a_dragged_block_stays_on_the_table_and_clear_of_the_agent(x, y, angle, seed):
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
    assert math.dist(moved[:2], obs[2:4]) < 2.0, "the solver and the hand agree on inputs is clear"


def test_a_block_clear_of_agent_and_walls_is_dragged_exactly():
    env = PushTEnv()
    env.reset(options={"state": [50, 50, 300, 300, 0]})
    env.hold_block((250.5, 200.25, 1.5))
    obs, _ = env.advance(np.array([50.0, 50.0]), 1)
    assert obs[2:].tolist() == pytest.approx([250.5, 200.25, 1.5])


@pytest.mark.parametrize("pose", [(math.nan, 0, 0), (0, 0, math.inf), (1, 2), "abc", None])
def test_invalid_drag_poses_are_rejected(pose):
    env = PushTEnv()
    env.reset(seed=0)
    with pytest.raises(EnvError, match="a pose of the block"):
        env.hold_block(pose)
