"""Tests for envs/pusht/dynamics.py, against the human demonstrations."""

import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.envs.pusht.dynamics import PushTDynamics
from nsde_policy.tasks import get_task
from tests.helpers.replay import replay_episodes


@pytest.mark.slow
def test_human_demonstrations_replay_as_recorded(human_demos):
    demos = load_demonstrations(human_demos, angles=(4,))
    errors = [error for error, _ in replay_episodes(demos, get_task("pusht"), range(206))]
    assert len(errors) == 206
    assert max(errors) < 1e-4  # they are stored as float32
    from_states = [error for error, _ in replay_episodes(demos, get_task("pusht"))]
    assert sum(error < 0.01 for error in from_states) == 205


def test_agent_never_leaves_the_table():
    table = PushTDynamics()
    table.place([0.0, 512.0, 256.0, 256.0, 0.0])
    for target in [(512.0, 0.0), (0.0, 512.0)] * 20 + [(512.0, 0.0)] * 3 + [(0.0, 0.0), (512.0, 512.0)] * 20:
        table.advance(*target)
        assert 0.0 <= table.agent[0] <= 512.0
        assert 0.0 <= table.agent[1] <= 512.0
