"""Tests for copies of Push-T in mid-episode: copy.deepcopy and pickle."""

import copy
import pickle
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht import dynamics
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.errors import EnvError
from nsde_policy.tasks.adapter import EnvAdapter

COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}


class OneOfVector(gym.vector.SyncVectorEnv):
    """A vector of one environment with the interface of a single one."""

    def __init__(self):
        super().__init__([partial(gym.make, PUSHT_ID)])

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action[None])
        return obs[0], reward[0], terminated[0], truncated[0], info


MAKERS = {
    "env": PushTEnv,
    "wrapped": lambda: gym.make(PUSHT_ID),
    "vector": OneOfVector,
    "adapter": lambda: EnvAdapter(gym.make(PUSHT_ID), "push"),
}


@pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_copy_in_mid_episode_continues_exactly(make, duplicate):
    env = make()
    targets = np.random.default_rng(0).uniform(0, 512, (220, 2))  # pushes the block into walls
    env.reset(seed=100004)
    for target in targets[:100]:
        env.step(target)
    copied = duplicate(env)
    for target in targets[100:]:
        ours, theirs = env.step(target), copied.step(target)
        assert np.array_equal(ours[0], theirs[0])
        assert ours[1:3] == theirs[1:3]


def test_copy_of_a_disturbed_episode_is_exact_and_independent():
    env = PushTEnv()
    env.reset(seed=7)
    env.advance(np.array([300.0, 300.0]), 3)
    env.push(60.0, np.random.default_rng(1))
    env.hold_block([200.0, 300.0, 1.0])
    copied = copy.deepcopy(env)
    before, _ = env.advance(np.array([200.0, 300.0]), 0)
    for _ in range(60):
        copied.step(np.array([200.0, 300.0]))
    assert np.array_equal(env.advance(np.array([200.0, 300.0]), 0)[0], before)
    for _ in range(60):
        obs, *_ = env.step(np.array([200.0, 300.0]))
    assert not np.array_equal(obs, before)
    assert np.array_equal(obs, copied.advance(np.array([200.0, 300.0]), 0)[0])


def test_copy_draws_the_same_next_start():
    env = PushTEnv()
    env.reset(seed=5)
    copied = copy.deepcopy(env)
    assert np.array_equal(env.reset()[0], copied.reset()[0])


def test_copy_before_the_first_reset_can_be_reset():
    copied = copy.deepcopy(PushTEnv())
    assert np.array_equal(copied.reset(seed=5)[0], PushTEnv().reset(seed=5)[0])


def test_copy_of_an_endless_episode_is_refused(monkeypatch):
    monkeypatch.setattr(dynamics, "MAX_CALLS", 10)
    env = PushTEnv()
    env.reset(seed=5)
    for _ in range(8):
        env.step(np.zeros(2))
    copy.deepcopy(env)
    env.step(np.zeros(2))
    with pytest.raises(EnvError, match=r"cannot copy a table after more than 10 steps.*repeat"):
        copy.deepcopy(env)
    env.reset(seed=5)
    copy.deepcopy(env)
