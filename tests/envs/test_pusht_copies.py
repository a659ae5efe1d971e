"""Tests for copies of Push-T in mid-episode: copy.deepcopy and pickle."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht.env import PushTEnv

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", [PushTEnv, lambda: gym.make(PUSHT_ID)], ids=["env", "wrapped"])
def test_copy_in_mid_episode_continues_exactly_and_independently(make, duplicate):
    env = make()
    targets = np.random.default_rng(0).uniform(0, 512, (160, 2))  # pushes the block into walls
    env.reset(seed=100004)
    env.unwrapped.push(60.0, np.random.default_rng(1))
    for target in targets[:80]:
        env.step(target)
    env.unwrapped.hold_block([200.0, 300.0, 1.0])
    copied = duplicate(env)
    theirs = [copied.step(target) for target in targets[80:]]
    ours = [env.step(target) for target in targets[80:]]
    for mine, other in zip(ours, theirs, strict=True):
        assert np.array_equal(mine[0], other[0])
        assert mine[1:3] == other[1:3]
    assert np.array_equal(env.reset()[0], copied.reset()[0]), "both draw the same next start"


def test_copy_before_the_first_reset_can_be_reset():
    copied = copy.deepcopy(PushTEnv())
    assert np.array_equal(copied.reset(seed=5)[0], PushTEnv().reset(seed=5)[0])
