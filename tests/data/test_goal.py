"""Tests for data/goal.py: the goal that the ends of demonstrations show."""

import math
from dataclasses import replace

import numpy as np
import pytest

from nsde_policy.data import Demonstrations
from nsde_policy.data.goal import GATE, Goal, find_goal, is_goal_certain


def make_demos(episodes: int = 20, *, arrive: int = 30) -> Demonstrations:
    """Make demonstrations that end in column 0 near 5 and in the angle 1 near π, and anywhere in column 2.

    They start far away, and stay at the end from the frame `arrive` on.
    """
    rng = np.random.default_rng(0)
    ends = np.stack(
        [rng.normal(5, 0.1, episodes), rng.normal(math.pi, 0.1, episodes), rng.normal(0, 1, episodes)], 1
    )
    far = rng.uniform(1, 2, (episodes, 3)) * rng.choice([-1, 1], (episodes, 3))
    away = np.clip(1 - np.arange(40) / arrive, 0, 1)[None, :, None] * far[:, None]
    obs = (ends[:, None] + away).reshape(-1, 3)
    obs[:, 1] = (obs[:, 1] + math.pi) % (2 * math.pi) - math.pi  # jumps at the goal
    return Demonstrations(
        np.float32(obs), np.zeros((len(obs), 1), "f4"), np.arange(40, len(obs) + 1, 40), angles=(1,)
    )


def require_goal(demos: Demonstrations) -> Goal:
    goal = find_goal(demos)
    assert goal is not None
    return goal


def test_columns_that_agree_and_the_circular_mean_are_found():
    goal = require_goal(make_demos())
    assert (goal.columns, goal.angles) == ((0, 1), (1,))
    assert goal.mean[0] == pytest.approx(5, abs=0.1)
    assert abs(goal.mean[1]) == pytest.approx(math.pi, abs=0.1)
    obs = np.array([[5.0, math.pi, 9.0], [5.0, -math.pi, -9.0], [5.0, 0.0, 0.0]])
    near, turned, far = goal.distance(obs)
    assert near == pytest.approx(turned)
    assert near < GATE < 100 < far


def test_distance_is_in_variances_of_the_ends_also_if_columns_depend_on_each_other():
    demos = make_demos()
    assert require_goal(demos).distance(demos.obs[demos.episode_ends - 1]).mean() == pytest.approx(1, abs=0.1)
    twice = np.concatenate([demos.obs, demos.obs[:, :1]], axis=1)
    goal = require_goal(Demonstrations(twice, demos.act, demos.episode_ends, angles=(1,)))
    assert goal.columns == (0, 1, 3)
    assert np.isfinite(goal.distance(twice)).all()


def test_few_demonstrations_and_ends_that_disagree_show_no_goal():
    assert find_goal(make_demos(7)) is None
    demos = make_demos()
    assert find_goal(demos.select_columns((2,))) is None
    constant = np.ones_like(demos.obs[:, :1])  # always the same, so not a goal
    assert find_goal(Demonstrations(constant, demos.act, demos.episode_ends)) is None


def test_frames_nearby_are_those_at_the_end_and_none_if_near_from_the_beginning():
    demos = make_demos()
    assert 10 <= require_goal(demos).frames_nearby(demos) <= 20
    early = make_demos(arrive=10)
    assert require_goal(early).frames_nearby(early) == 0


def test_a_column_that_almost_agrees_leaves_the_goal_unclear_unless_it_is_a_feature_of_images():
    demos, rng = make_demos(), np.random.default_rng(2)
    assert is_goal_certain(demos)
    almost = rng.normal(size=(len(demos.obs), 1))
    almost[demos.episode_ends - 1] *= 0.25
    unclear = replace(demos, obs=np.float32(np.concatenate([demos.obs, almost], axis=1)))
    assert not is_goal_certain(unclear)
    assert is_goal_certain(unclear, image_features=1)
