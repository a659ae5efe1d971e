"""Tests for nsde_policy/viewer/simulation.py."""

import numpy as np

from nsde_policy.envs.pusht import geometry
from nsde_policy.tasks import get_task
from nsde_policy.viewer.simulation import Simulation


def test_first_success_is_kept_until_the_block_is_dragged():
    simulation = Simulation(get_task("pusht"), 5)
    corner = np.array([20.0, 20.0])
    home, away = np.array(geometry.GOAL_POSE), np.array([400.0, 400.0, 0.0])
    shown = [simulation.describe()]
    for dragged in (None, None, away, away, None, None, home, None, away):
        simulation.advance(corner, dragged, by_user=dragged is not None)
        shown.append(simulation.describe())
    assert [each["solved"] for each in shown] == [period in (7, 8) for period in range(10)]
    assert [each["released_at"] for each in shown] == [None] * 3 + [3, 4, 4, 4, 7, 7, 9]
    assert [each["solved_at"] for each in shown] == [None] * 7 + [7, 7, None]
