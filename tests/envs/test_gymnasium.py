"""Tests of what all environments of the package promise: Gymnasium's interface and clear errors."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from nsde_policy.envs import AVOIDING_ID, PUSHT_ID
from nsde_policy.envs.avoiding.env import AvoidingEnv
from nsde_policy.envs.pusht.env import PushTEnv
from nsde_policy.errors import EnvError


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on the action space
@pytest.mark.parametrize(
    ("env_id", "kwargs", "steps"),
    [
        (PUSHT_ID, {"obs_type": "state"}, 300),
        (PUSHT_ID, {"obs_type": "pixels_agent_pos"}, 20),
        (PUSHT_ID, {"obs_type": "pixels_state"}, 20),
        (AVOIDING_ID, {"start": "fixed", "render_mode": "rgb_array"}, 20),
        (AVOIDING_ID, {"start": "varied", "render_mode": "rgb_array"}, 20),
    ],
)
def test_env_passes_the_checkers_and_stays_inside_its_declared_space(
    env_id: str, kwargs: dict[str, Any], steps: int
):
    env = gym.make(env_id, **kwargs)
    check_env(env.unwrapped)
    rng = np.random.default_rng(0)
    obs, _ = env.reset(seed=100000)
    low, high = env.action_space.low, env.action_space.high
    for _ in range(steps):
        assert env.observation_space.contains(obs)
        obs, *_ = env.step(rng.uniform(low, high))


@pytest.mark.parametrize(
    ("env_id", "action", "periods"), [(PUSHT_ID, [30.0, 30.0], 300), (AVOIDING_ID, [0.0, 0.0], 250)]
)
def test_an_episode_is_truncated_after_its_periods(env_id: str, action: list[float], periods: int):
    env = gym.make(env_id)
    env.reset(seed=100000)
    ended = [env.step(np.array(action))[3] for _ in range(periods)]
    assert ended.index(True) == periods - 1


@pytest.mark.parametrize("kind", [PushTEnv, AvoidingEnv])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([np.nan, 1.0], "finite"),
        ([1.0, 2.0, 3.0], r"shape \(2,\), got \(3,\)"),
        ("left", "must be 2 numbers, got str 'left'"),
        (torch.ones(2, requires_grad=True), "must be 2 numbers, got Tensor"),
    ],
    ids=str,
)
def test_invalid_action_is_rejected_and_changes_nothing(
    kind: type[gym.Env[Any, Any]], action: Any, message: str
):
    env, twin = kind(), kind()
    for each in (env, twin):
        obs, _ = each.reset(seed=100000)
    with pytest.raises(EnvError, match=message):
        env.step(action)
    change = np.clip(obs[:2], env.action_space.low, env.action_space.high)
    assert np.array_equal(env.step(change)[0], twin.step(change)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PushTEnv().reset(options={"stat": [0] * 5}), r"the option 'state', got \['stat'\]"),
        (lambda: PushTEnv().reset(options={"state": [1.0, 2.0, 3.0, 4.0]}), r"shape \(5,\), got \(4,\)"),
        (lambda: PushTEnv().reset(options={"state": [1.0, 2, 3, -4e3, 0]}), r"between \[0.0, 0.0, -256.0"),
        (lambda: AvoidingEnv().reset(options={"state": [0.0] * 4}), r"must lie between \[0.15, -0.32, "),
        (lambda: PushTEnv(obs_type="image"), "obs_type must be one of 'state', 'pixels_agent_pos'"),
        (lambda: PushTEnv(reset_rule="mine"), "reset_rule must be one of"),
        (lambda: AvoidingEnv(start="random"), "start must be one of 'fixed', 'varied'; got 'random'"),
        (lambda: PushTEnv().step(np.zeros(2)), r"call reset\(\) first"),
        (lambda: AvoidingEnv().step(np.zeros(2)), r"call reset\(\) first"),
    ],
)
def test_invalid_arguments_are_named(call: Callable[[], object], message: str):
    with pytest.raises(EnvError, match=message):
        call()
