"""Tests for envs/pusht/env.py, envs/pusht/dynamics.py and envs/__init__.py."""

import math
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from nsde_policy.data import load_demonstrations
from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.dynamics import PushTDynamics
from nsde_policy.tasks import get_task
from tests.helpers.replay import replay_episodes

# The first observations that gym-pusht 0.1.8 gives for these seeds.
GYM_PUSHT_STARTS = {
    0: [390.0, 304.0, 241.54255640895335, 268.5169735431818, 3.3990368971690628],
    7: [427.0, 300.0, 349.41523429665847, 421.2309724361895, 1.7321842783482628],
    100000: [113.0, 100.0, 219.69849511224464, 329.9945786131859, 3.1260699166107457],
    123456: [89.0, 304.0, 330.782935680075, 303.01522068713547, 3.4397010283927663],
}

# Seed, targets, last observation and last info of gym-pusht 0.1.8 (pymunk 6.11) in an episode whose block
# meets two walls at once.
CORNER_SEED = 43
CORNER_TARGETS = [
    *[(311, 0), (231, 39), (232, 47), (200, 96), (238, 91), (216, 77), (184, 78), (159, 101), (145, 87)],
    *[(206, 58), (144, 73), (60, 84), (100, 86), (100, 4), (122, 20), (75, 97), (26, 30), (0, 31)],
]
CORNER_END = [44.3071038902739, 43.20341107022621, 32.952245024039094, 66.7390101036434, 1.6511998901548175]
CORNER_INFO = {
    "pos_agent": CORNER_END[:2],
    "block_pose": [*CORNER_END[2:4], CORNER_END[4] - 2 * math.pi],  # the angle is not wrapped
    "goal_pose": geometry.GOAL_POSE,
    "is_success": False,
}


def make(**kwargs):
    return gym.make(PUSHT_ID, **kwargs)


def start_of(seed, **kwargs):
    return make(**kwargs).reset(seed=seed)[0]


@pytest.mark.parametrize("k", [0, 1, 57, 107, 205])
def test_demonstration_k_starts_where_benchmark_seed_k_does(human_states, k):
    states, ends = human_states
    first = states[ends[k - 1] if k else 0]
    assert start_of(k, reset_rule="benchmark") == pytest.approx(first, abs=2e-5)


@pytest.mark.parametrize("seed", GYM_PUSHT_STARTS)
def test_gym_pusht_rule_matches_gym_pusht(seed):
    assert start_of(seed, reset_rule="gym_pusht") == pytest.approx(GYM_PUSHT_STARTS[seed], abs=1e-9)


def test_contacts_with_two_walls_are_solved_in_the_order_of_gym_pusht():
    env = make(reset_rule="gym_pusht")
    env.reset(seed=CORNER_SEED)
    for target in CORNER_TARGETS:
        obs, *_, info = env.step(np.array(target, float))
    assert obs == pytest.approx(CORNER_END, abs=1e-9)
    for name, value in CORNER_INFO.items():
        assert info[name] == pytest.approx(value, abs=1e-9), name


def test_a_seed_repeats_its_episode_and_the_unseeded_starts_after_it():
    actions = np.random.default_rng(0).uniform(100, 400, (80, 2))

    def play(env):
        env.reset(seed=5)
        episode = [env.step(action)[0] for action in actions]
        return np.array([*episode, *(env.reset()[0] for _ in range(3))])

    env = make()
    first = play(env)
    assert np.array_equal(first, play(env))
    assert np.array_equal(first, play(make()))
    assert len(np.unique(first[-3:, 0])) == 3


def test_given_state_is_restored_exactly():
    rng = np.random.default_rng(3)
    env = make()
    states = [np.array([*rng.uniform(60, 450, 4), rng.uniform(0, 2 * math.pi)]) for _ in range(50)]
    for state in [*states, [256.0, 250.0, 256.0, 256.0, 0.0]]:  # in the last, the agent stands in the bar
        obs, _ = env.reset(options={"state": state})
        assert obs == pytest.approx(state, abs=1e-9)


def test_reward_is_coverage_over_95_percent_and_success_ends_the_episode():
    env = make()
    x, y, angle = geometry.GOAL_POSE
    for offset in np.linspace(0, 12, 25):
        env.reset(options={"state": [20.0, 20.0, x + offset, y, angle]})
        _, reward, terminated, truncated, info = env.step(np.array([20.0, 20.0]))
        assert info["coverage"] == pytest.approx(geometry.coverage((x + offset, y, angle)))
        assert reward == pytest.approx(min(info["coverage"] / 0.95, 1.0))
        assert terminated == info["success"] == (info["coverage"] > 0.95)
        assert not truncated
    assert info["coverage"] < 0.95


def test_targets_are_clipped_to_the_table():
    far, edge = make(), make()
    for env in (far, edge):
        env.reset(seed=100001)
    for _ in range(10):
        a, *_ = far.step(np.array([9000.0, -50.0]))
        b, *_ = edge.step(np.array([512.0, 0.0]))
        assert np.array_equal(a, b)


def test_env_id_can_name_its_module_and_states_need_no_pygame():
    code = (
        "import sys, gymnasium\n"
        "e = gymnasium.make('nsde_policy.envs:nsde_policy/PushT-v0'); e.reset(seed=0); e.step([9.0, 9.0])\n"
        "assert 'pygame' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)


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
