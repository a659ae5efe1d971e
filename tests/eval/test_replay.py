"""Tests for eval/replay.py: recorded actions in the environment of their task."""

import numpy as np

from nsde_policy.data import Demonstrations
from nsde_policy.eval.replay import describe_replays, replay_demonstrations
from nsde_policy.tasks import get_task


def test_an_episode_ends_where_the_environment_ends_it():
    task = get_task("avoiding")
    obs, _ = task.make_env().reset(seed=0)
    straight = np.tile(np.float32([0, 0.0125]), (100, 1))  # through an obstacle, and on to the line
    demos = Demonstrations(np.tile(obs, (100, 1)), straight, np.array([100]))
    (replay,) = replay_demonstrations(demos, task)
    assert replay.success is False
    assert replay.unused_actions > 60
    assert "0 succeed, 1 end before the last recorded action" in describe_replays([replay])
