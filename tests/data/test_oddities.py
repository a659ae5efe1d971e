"""Tests for data/oddities.py: what is often a mistake in demonstrations."""

from dataclasses import replace

import numpy as np

from nsde_policy.data import Demonstrations, oddities
from tests.helpers.robot_arm import make_arm_demos


def find_oddities(demos: Demonstrations) -> list[str]:
    """Return all lines but the one about the gripper, which every arm has."""
    return [line for line in oddities.find_oddities(demos) if not line.startswith("binary actions: ")]


def test_actions_of_two_values_are_named_with_them():
    (line,) = oddities.find_oddities(make_arm_demos())
    assert line == "binary actions: action 7 (0 or 1); commands are rounded, unless --demos.no-round-binary"


def with_observation(column: np.ndarray, name: str) -> Demonstrations:
    """Return arm demonstrations with one more observation."""
    demos = make_arm_demos(noise=0.01)
    names = (*(f"joint {i}" for i in range(7)), "gripper", name)
    return replace(demos, obs=np.column_stack([demos.obs, column.astype(np.float32)]), obs_names=names)


def test_nothing_is_odd_about_an_arm():
    assert find_oddities(make_arm_demos()) == []
    frames = np.arange(len(make_arm_demos().obs))
    assert find_oddities(with_observation(np.random.default_rng(0).normal(size=len(frames)), "noise")) == []
    assert find_oddities(with_observation(np.sqrt(frames), "growth")) == []


def test_constant_columns_are_named():
    demos = with_observation(np.full(960, 3), "leg")
    assert find_oddities(demos)[0].startswith("columns that never change: leg; ")
    act = demos.act.copy()
    act[:, 5] = 0.5
    assert find_oddities(replace(demos, act=act))[0].startswith("columns that never change: leg, action 5; ")


def test_time_is_found_in_seconds_and_as_a_counter():
    frames = np.arange(960)
    for column, step in ((frames % 80, "1"), (frames % 80 / 20, "0.05"), (1000 + frames / 20, "0.05")):
        (line,) = find_oddities(with_observation(column, "stamp"))
        assert line.startswith(f"stamp looks like time, it grows by {step} in every frame")


def test_equal_columns_match_the_next_state_in_their_order():
    path = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    path[::2, 0] = 0.0
    obs = np.c_[np.ones(9), path, path]
    act = np.r_[path[1:], path[:1]]
    act[act == 0] = -0.0
    (line,) = (line for line in find_oddities(Demonstrations(obs, act, np.array([9]))) if "exactly" in line)
    assert line.startswith("action 0-1 = observation 1-2 of the next frame, exactly")


def test_still_ends_are_measured():
    demos = make_arm_demos(noise=0.01)
    obs, act = (values.reshape(12, 80, 8).copy() for values in (demos.obs, demos.act))
    for values in (obs, act):
        values[:, :8] = values[:, 8:9]
        values[:, 77:] = values[:, 76:77]
    still = Demonstrations(obs.reshape(-1, 8), act.reshape(-1, 8), demos.episode_ends)
    (line,) = find_oddities(still)
    assert line.startswith(
        "nothing moves in 10% of all frames at the start of episodes and in 4% at their end"
    )


def test_repeats_are_named():
    demos = make_arm_demos(episodes=2)
    (line,) = find_oddities(demos.select([0, 1, 0]))
    assert line.startswith("1 of 3 episodes are identical to earlier ones (2)")
