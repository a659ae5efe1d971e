"""Tests for envs/vector.py."""

import multiprocessing

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.vector import EpisodeVectorEnv
from nsde_policy.errors import EnvInputError

SEEDS = [100004, 100000, 100002, 7]


def actions_of(seed, steps=60):
    return np.random.default_rng(seed).uniform(120, 400, (steps, 2))


def alone(seed):
    """The states of one episode, played by itself."""
    env = gym.make(PUSHT_ID)
    first, _ = env.reset(seed=seed)
    return np.array([first, *(env.step(a)[0] for a in actions_of(seed))])


def begun(num_envs):
    envs = EpisodeVectorEnv(PUSHT_ID, num_envs)
    envs.reset(seed=0)
    return envs


def together(seeds):
    envs = EpisodeVectorEnv(PUSHT_ID, len(seeds))
    plans = np.stack([actions_of(s) for s in seeds], axis=1)
    first, _ = envs.reset(seed=seeds)
    return np.stack([first, *(envs.step(a)[0] for a in plans)], axis=1)


def test_an_episode_does_not_depend_on_its_batch_or_order():
    expected = [alone(seed) for seed in SEEDS]
    forwards, backwards = together(SEEDS), together(SEEDS[::-1])
    for i, states in enumerate(expected):
        assert np.array_equal(forwards[i], states)
        assert np.array_equal(backwards[-1 - i], states)


def test_an_episode_does_not_depend_on_the_process():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        elsewhere = pool.map(alone, SEEDS)
    for states, seed in zip(elsewhere, SEEDS, strict=True):
        assert np.array_equal(states, alone(seed))


def test_one_seed_means_consecutive_seeds():
    a, _ = EpisodeVectorEnv(PUSHT_ID, 3).reset(seed=50)
    b, _ = EpisodeVectorEnv(PUSHT_ID, 3).reset(seed=[50, 51, 52])
    assert np.array_equal(a, b)


def test_seeds_may_come_from_numpy():
    expected, _ = EpisodeVectorEnv(PUSHT_ID, 3).reset(seed=50)
    for seeds in (np.arange(50, 53), np.int64(50)):
        obs, _ = EpisodeVectorEnv(PUSHT_ID, 3).reset(seed=seeds)
        assert np.array_equal(obs, expected)


def test_what_was_refused_can_be_closed():
    EpisodeVectorEnv.__new__(EpisodeVectorEnv).close_extras()


def test_finished_episodes_leave_the_batch_and_keep_their_last_row():
    envs = EpisodeVectorEnv(PUSHT_ID, 2, max_episode_steps=5)
    envs.reset(seed=0)
    # Put the first block on its goal: the episode ends with the first step.
    goal = [20.0, 20.0, 256.0, 256.0, np.pi / 4]
    envs.envs[0].reset(options={"state": goal})
    stay = np.array([[20.0, 20.0], [300.0, 300.0]])
    obs, reward, terminated, truncated, info = envs.step(stay)
    assert terminated.tolist() == [True, False]
    assert envs.active.tolist() == [1]
    assert info["success"].tolist() == [True, False]
    last = obs[0].copy()
    nonsense = np.array([[np.nan, np.nan], [200.0, 200.0]])  # the finished row's action is not read
    while len(envs.active):
        obs, reward, terminated, truncated, info = envs.step(nonsense)
        assert np.array_equal(obs[0], last)
        assert reward[0] == 0.0
        assert not info["_coverage"][0]
    assert terminated.tolist() == [True, False]
    assert truncated.tolist() == [False, True]


def test_an_earlier_answer_does_not_change_later():
    envs = EpisodeVectorEnv(PUSHT_ID, 2)
    first, _ = envs.reset(seed=0)
    copy = first.copy()
    envs.step(np.full((2, 2), 256.0))
    assert np.array_equal(first, copy)


def test_dict_observations_are_stacked_by_key():
    envs = EpisodeVectorEnv(PUSHT_ID, 2, obs_type="pixels_agent")
    obs, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(obs)
    assert obs["pixels"].shape == (2, 96, 96, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EpisodeVectorEnv(PUSHT_ID, 0), "whole number of episodes from 1 on"),
        (lambda: EpisodeVectorEnv(PUSHT_ID, 1.5), "whole number of episodes from 1 on"),
        (lambda: EpisodeVectorEnv(PUSHT_ID, 2).reset(seed=[1, 2, 3]), r"seeds \[1, 2, 3\] for 2 episodes"),
        (lambda: EpisodeVectorEnv(PUSHT_ID, 2).reset(seed=1.5), "seeds 1.5 for 2 episodes"),
        (lambda: EpisodeVectorEnv(PUSHT_ID, 2).reset(seed=[-1, 2]), "from 0 on, got -1"),
        (lambda: begun(2).step(np.zeros((3, 2))), r"shape \(3, 2\) for 2 episodes"),
        (lambda: begun(2).step(None), r"shape \(\) for 2 episodes"),
        (lambda: EpisodeVectorEnv(PUSHT_ID, 2).step(np.zeros((2, 2))), r"call reset\(\) first"),
    ],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(EnvInputError, match=message):
        call()
