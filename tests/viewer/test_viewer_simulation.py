"""Tests for nsde_policy/viewer/simulation.py, and for dragging the block in envs/pusht/env.py."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.tasks import get_task
from nsde_policy.viewer import simulation as simulation_module
from nsde_policy.viewer.simulation import Input, Simulation

PUSHT = get_task("pusht")


def random_inputs(n: int) -> list[Input]:
    """Return random targets, some with a drag and some at rest."""
    rng = np.random.default_rng(0)
    found = []
    for target, turn, kind in zip(
        rng.uniform(0, 512, (n, 2)), rng.uniform(-4, 4, n), rng.random(n), strict=True
    ):
        dragged = np.array([*target[::-1], turn]) if kind < 0.2 else None
        found.append(Input(None) if kind > 0.9 else Input(target, dragged))
    return found


def play(simulation: Simulation, inputs: list[Input]) -> list[np.ndarray]:
    seen = []
    for each in inputs:
        simulation.advance(each)
        seen.append(simulation.now.state)
    return seen


@pytest.mark.parametrize("period", [0, 43, 60])
def test_a_past_period_is_restored_exactly_and_replays_the_same_future(period):
    simulation, inputs = Simulation(PUSHT, 3), random_inputs(60)
    seen = [simulation.now.state, *play(simulation, inputs)]
    simulation.restore(period)
    assert simulation.last == period
    assert np.array_equal(simulation.now.state, seen[period])
    again = play(simulation, inputs[period:])
    assert all(np.array_equal(a, b) for a, b in zip(again, seen[period + 1 :], strict=True))


def test_a_long_episode_continues_with_an_empty_history(monkeypatch):
    monkeypatch.setattr(simulation_module, "HISTORY_PERIODS", 20)
    simulation = Simulation(PUSHT, 5)
    seen = play(simulation, random_inputs(75))
    assert (simulation.first, simulation.last, len(simulation.progress)) == (60, 75, 16)
    assert np.allclose(simulation.at(60).state, seen[59])
    for period in (70, 60):
        simulation.restore(period)
        assert np.allclose(simulation.now.state, seen[period - 1])


def test_first_success_is_kept_until_the_block_is_dragged_or_a_period_before_it_is_restored():
    simulation = Simulation(PUSHT, 5)
    corner = np.array([20.0, 20.0])
    home, away = Input(corner, np.array(geometry.GOAL_POSE)), Input(corner, np.array([400.0, 400.0, 0.0]))
    play(simulation, [Input(corner)] * 2 + [away] * 2 + [Input(corner)] * 2 + [home, Input(corner), away])
    shown = [simulation.describe(period) for period in range(10)]
    assert [each["solved"] for each in shown] == [period in (7, 8) for period in range(10)]
    assert [each["released_at"] for each in shown] == [None] * 3 + [3, 4, 4, 4, 7, 7, 9]
    assert [each["solved_at"] for each in shown] == [None] * 7 + [7, 7, None]
    assert [period for period, *pose in simulation.drags] == [2, 3, 6, 8]
    simulation.restore(6)
    play(simulation, [away] * 5)
    assert simulation.describe(simulation.last)["solved_at"] is None


@settings(max_examples=40, deadline=None)
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
    for _ in range(30):
        obs, _ = env.advance(np.asarray(obs)[:2], 1)
        corners = np.array(geometry.to_world(geometry.OUTLINE, obs[2:]))
        assert corners.min() > 5
        assert corners.max() < 507
    moved = geometry.move_clear(obs[2:], obs[:2])
    assert math.dist(moved[:2], obs[2:4]) < 2.0, "the solver and the hand agree on what is clear"
