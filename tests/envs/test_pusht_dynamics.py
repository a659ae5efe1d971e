"""Tests for envs/pusht/dynamics.py, against the human demonstrations."""

import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.envs.pusht.dynamics import PushTDynamics
from nsde_policy.eval.replay import replay_demonstrations
from nsde_policy.tasks import get_task


@pytest.mark.slow
def test_human_demonstrations_replay_as_recorded(human_demos):
    demos = load_demonstrations(human_demos, angles=(4,))
    replays = list(replay_demonstrations(demos, get_task("pusht"), start="seed"))
    assert len(replays) == 206
    assert max(each.position_error for each in replays) < 0.01
    assert max(each.angle_error for each in replays) < 1e-4


def test_agent_never_leaves_the_table():
    table = PushTDynamics()
    table.place([0.0, 512.0, 256.0, 256.0, 0.0])
    for target in [(512.0, 0.0), (0.0, 512.0)] * 20 + [(512.0, 0.0)] * 3 + [(0.0, 0.0), (512.0, 512.0)] * 20:
        table.advance(*target)
        assert 0.0 <= table.agent[0] <= 512.0
        assert 0.0 <= table.agent[1] <= 512.0
