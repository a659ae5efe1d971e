"""Tests for envs/pusht/dynamics.py, against the human demonstrations, on pymunk 7 and 6."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.envs.pusht.dynamics import PushTDynamics
from nsde_policy.eval.replay import replay_demonstrations
from nsde_policy.tasks import get_task

ROOT = Path(__file__).parents[2]
OLD_PYMUNK = Path(os.environ.get("NSDE_POLICY_PYMUNK_6", Path(sys.prefix) / "pymunk-6"))


REPLAY = """
import sys, pymunk
from nsde_policy.data import load_demonstrations
from nsde_policy.eval.replay import replay_demonstrations
from nsde_policy.tasks import get_task
demos = load_demonstrations(sys.argv[1], angles=(4,)).take(30)
replays = replay_demonstrations(demos, get_task("pusht"), start="seed")
errors = [(each.position_error, each.angle_error) for each in replays]
print(pymunk.version, len(demos), *map(max, zip(*errors)))
"""


@pytest.mark.slow
def test_human_demonstrations_replay_as_recorded(human_demos):
    demos = load_demonstrations(human_demos, angles=(4,))
    replays = list(replay_demonstrations(demos, get_task("pusht"), start="seed"))
    assert len(replays) == 206
    assert max(each.position_error for each in replays) < 0.01
    assert max(each.angle_error for each in replays) < 1e-4


@pytest.mark.slow
def test_pymunk_6_replays_them_as_well(human_demos):
    if not OLD_PYMUNK.is_dir():
        pytest.skip(f"no pymunk 6 in {OLD_PYMUNK}; `make test` puts it there")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(OLD_PYMUNK), str(ROOT)])}
    command = [sys.executable, "-c", REPLAY, str(human_demos)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version, count, position, angle = done.stdout.split()[
        -4:
    ]  # a debug build of Chipmunk prints that it is one
    assert (version, count) == ("6.11.1", "30")
    assert float(position) < 0.01
    assert float(angle) < 1e-4


def test_agent_never_leaves_the_table():
    table = PushTDynamics()
    table.place([0.0, 512.0, 256.0, 256.0, 0.0])
    for target in [(512.0, 0.0), (0.0, 512.0)] * 20 + [(512.0, 0.0)] * 3 + [(0.0, 0.0), (512.0, 512.0)] * 20:
        table.advance(*target)
        assert 0.0 <= table.agent[0] <= 512.0
        assert 0.0 <= table.agent[1] <= 512.0
