"""Tests for data/statistics.py: demonstrations whose predictability and forks are known."""

import numpy as np
import pytest

from nsde_policy.data import Demonstrations, Episode
from nsde_policy.data.statistics import measure_statistics


def make_demos(make_path, episodes=40, length=60, **fields):
    """Record paths of a position-controlled point: each action is the next position."""
    rng = np.random.default_rng(0)
    paths = [make_path(np.linspace(0, 1, length), i, rng).astype(np.float32) for i in range(episodes)]
    return Demonstrations.from_episodes([Episode(path[:-1], path[1:]) for path in paths], **fields)


def circle(t, i, rng):
    return np.stack([np.cos(4 * t + i), np.sin(4 * t + i)], axis=1)


def fork(t, i, rng):
    side = 1 if i % 2 else -1
    return np.stack([t, side * np.maximum(t - 0.5, 0)], axis=1) + rng.normal(0, 1e-3, (len(t), 2))


def walk(t, i, rng):
    return rng.normal(size=(len(t), 2)).cumsum(axis=0)


def test_deterministic_demonstrator_is_predictable_without_forks():
    found = measure_statistics(make_demos(circle))
    assert found.unexplained_share < 0.05
    assert found.fork_share < 0.02
    assert (found.is_predictable, found.has_forks) == (True, False)


def test_two_ways_from_one_place_are_forks():
    found = measure_statistics(make_demos(fork))
    assert found.fork_share == pytest.approx(7 / 52, abs=0.05)  # frames up to 1/8 of the path before the fork
    assert (found.is_predictable, found.has_forks) == (False, True)


def test_random_walk_is_neither_predictable_nor_forked():
    found = measure_statistics(make_demos(walk))
    assert found.unexplained_share > 0.7
    assert (found.is_predictable, found.has_forks) == (False, False)


def test_shares_depend_neither_on_units_nor_on_constant_columns():
    def in_millimetres(t, i, rng):
        return np.concatenate([1000.0 * fork(t, i, rng), np.ones((len(t), 3))], axis=1)

    metres, millimetres = (measure_statistics(make_demos(path)) for path in (fork, in_millimetres))
    assert metres.fork_share == millimetres.fork_share
    assert metres.unexplained_share == pytest.approx(millimetres.unexplained_share, rel=1e-3)


def test_angles_are_compared_on_the_circle():
    def turn(t, i, rng):
        return np.stack([4 * t + 0.1 * i + 2 * np.pi * rng.integers(-3, 4), np.sin(4 * t + 0.1 * i)], axis=1)

    assert measure_statistics(make_demos(turn, angles=(0,), act_angles=(0,))).unexplained_share < 0.05
    assert measure_statistics(make_demos(turn)).unexplained_share > 0.05


def test_too_few_episodes_to_compare_say_nothing_about_predictability():
    found = measure_statistics(make_demos(circle, episodes=3))
    assert (found.unexplained_share, found.fork_share) == (1.0, 0.0)
