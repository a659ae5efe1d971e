"""Tests for data/statistics.py: demonstrations whose predictability and branches are known."""

import numpy as np
import pytest

from nsde_policy.data import Episode
from nsde_policy.data.statistics import measure_statistics
from tests.helpers.episodes import join_episodes


def make_demos(make_path, episodes=40, length=60, **fields):
    """Record paths of a position-controlled point: each action is the next position."""
    rng = np.random.default_rng(0)
    paths = [make_path(np.linspace(0, 1, length), i, rng).astype(np.float32) for i in range(episodes)]
    return join_episodes([Episode(path[:-1], path[1:]) for path in paths], **fields)


def circle(t, i, rng):
    return np.stack([np.cos(4 * t + i), np.sin(4 * t + i)], axis=1)


def fork(t, i, rng):
    side = 1 if i % 2 else -1
    return np.stack([t, side * np.maximum(t - 0.5, 0)], axis=1) + rng.normal(0, 1e-3, (len(t), 2))


def switch(t, i, rng):
    """Return a path that turns to the side of an object, whose place is observed."""
    place = rng.uniform(0.5, 1.5) * (1 if i % 2 else -1)
    turn = np.sign(place) * np.maximum(t - 0.5, 0)
    return np.stack([t, turn, np.full(len(t), place)], axis=1) + rng.normal(0, 1e-3, (len(t), 3))


def walk(t, i, rng):
    return rng.normal(size=(len(t), 2)).cumsum(axis=0)


@pytest.mark.parametrize(
    ("path", "unexplained", "branching", "kind"),
    [
        (circle, (0, 0.05), (0, 0.02), (True, False)),
        (
            fork,
            (0, 1),
            (7 / 52 - 0.05, 7 / 52 + 0.05),
            (False, True),
        ),  # up to 1/8 of the path before the fork
        (switch, (0, 1), (0, 1), (True, False)),
        (walk, (0.7, 1), (0, 1), (False, False)),
    ],
)
def test_statistics_of_known_demonstrators(path, unexplained, branching, kind):
    statistics = measure_statistics(make_demos(path))
    assert unexplained[0] <= statistics.unexplained_fraction <= unexplained[1]
    assert branching[0] <= statistics.branching_fraction <= branching[1]
    assert (statistics.is_predictable, statistics.has_branches) == kind


def test_few_episodes_show_no_branches():
    assert not measure_statistics(make_demos(fork, episodes=10)).has_branches


@pytest.mark.parametrize("path", [circle, fork, switch, walk])
def test_random_subsets_of_the_episodes_lead_to_the_same_settings(path):
    demos, rng = make_demos(path, episodes=24), np.random.default_rng(1)
    subsets = [demos.select(np.sort(rng.choice(24, 18, replace=False))) for _ in range(20)]
    kinds = [(s.is_predictable, s.has_branches) for s in map(measure_statistics, subsets)]
    usual = measure_statistics(demos)
    assert kinds.count((usual.is_predictable, usual.has_branches)) >= 19


def test_fractions_depend_neither_on_units_nor_on_constant_columns():
    def in_millimetres(t, i, rng):
        return np.concatenate([1000.0 * fork(t, i, rng), np.ones((len(t), 3))], axis=1)

    metres, millimetres = (measure_statistics(make_demos(path)) for path in (fork, in_millimetres))
    assert metres.branching_fraction == millimetres.branching_fraction
    assert metres.unexplained_fraction == pytest.approx(millimetres.unexplained_fraction, rel=1e-3)


def test_angles_are_compared_on_the_circle():
    def turn(t, i, rng):
        return np.stack([4 * t + 0.1 * i + 2 * np.pi * rng.integers(-3, 4), np.sin(4 * t + 0.1 * i)], axis=1)

    assert measure_statistics(make_demos(turn, angles=(0,), act_angles=(0,))).unexplained_fraction < 0.05
    assert measure_statistics(make_demos(turn)).unexplained_fraction > 0.05


def test_too_few_episodes_to_compare_say_nothing_about_predictability():
    statistics = measure_statistics(make_demos(circle, episodes=3))
    assert (statistics.unexplained_fraction, statistics.branching_fraction) == (1.0, 0.0)
