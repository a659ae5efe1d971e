"""Tests for nsde_policy/viewer/simulation.py."""

import numpy as np

from nsde_policy.envs.pusht import geometry
from nsde_policy.tasks import get_task
from nsde_policy.viewer import simulation as simulation_module
from nsde_policy.viewer.simulation import Simulation

PUSHT = get_task("pusht")


def test_a_long_episode_keeps_its_last_periods(monkeypatch):
    monkeypatch.setattr(simulation_module, "HISTORY_PERIODS", 20)
    short, long = Simulation(PUSHT, 5), Simulation(PUSHT, 5)
    targets = np.random.default_rng(0).uniform(0, 512, (75, 2))
    for target in targets:
        long.advance(target)
    assert (long.first, long.last, len(long.progress)) == (56, 75, 20)
    monkeypatch.setattr(simulation_module, "HISTORY_PERIODS", 100)
    for target in targets:
        short.advance(target)
    assert np.array_equal(long.now.state, short.now.state)
    assert long.progress == short.progress[-20:]


def test_first_success_is_kept_until_the_block_is_dragged():
    simulation = Simulation(PUSHT, 5)
    corner = np.array([20.0, 20.0])
    home, away = np.array(geometry.GOAL_POSE), np.array([400.0, 400.0, 0.0])
    shown = [simulation.describe()]
    for dragged in (None, None, away, away, None, None, home, None, away):
        simulation.advance(corner, dragged)
        shown.append(simulation.describe())
    assert [each["solved"] for each in shown] == [period in (7, 8) for period in range(10)]
    assert [each["released_at"] for each in shown] == [None] * 3 + [3, 4, 4, 4, 7, 7, 9]
    assert [each["solved_at"] for each in shown] == [None] * 7 + [7, 7, None]
    assert [period for period, *pose in simulation.drags] == [2, 3, 6, 8]
