"""Tests for data/action_columns.py: which action columns are observed positions."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.data import Demonstrations, load_demonstrations
from nsde_policy.data.action_columns import format_matches, match_changes, match_columns, measure_first_action
from tests.helpers.robot_arm import make_arm_demos


def match(demos: Demonstrations, obs: np.ndarray, act: np.ndarray, **angles: tuple[int, ...]):
    return match_columns(Demonstrations(obs, act, demos.episode_ends, **angles))


@pytest.mark.parametrize("lag", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_position_commands_match_their_joints_despite_lag_and_noise(lag: float, noise: float):
    demos = make_arm_demos(lag=lag, noise=noise)
    assert match_columns(demos) == (*range(7), -1)  # the gripper command is 0 or 1, its width in metres


def test_match_follows_the_columns_not_their_order():
    demos = make_arm_demos()
    order = [3, 7, 0, 6, 5, 1, 2, 4]
    expected = (*(order.index(joint) for joint in range(7)), -1)
    assert match(demos, demos.obs[:, order], demos.act) == expected


def make_delta_demos(*, scale: float = 1.0, **options: float) -> Demonstrations:
    """Make an arm that is commanded the change of its joints over one period, and its gripper."""
    demos = make_arm_demos(**options)
    delta = np.diff(demos.act, axis=0, prepend=demos.act[:1])
    delta[demos.starts] = 0.0
    delta[:, 7] = demos.act[:, 7]
    return Demonstrations(demos.obs, scale * delta, demos.episode_ends, rate_hz=demos.rate_hz)


@pytest.mark.parametrize("lag", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_delta_commands_match_the_changes_of_their_joints(lag: float, noise: float):
    demos = make_delta_demos(lag=lag, noise=noise)
    assert match_changes(demos, match_columns(demos)) == (*range(7), -1)


@pytest.mark.parametrize("scale", [20.0, 3.0, 0.1, -1.0])
def test_velocities_and_torques_are_no_changes(scale: float):
    demos = make_delta_demos(scale=scale)
    assert set(match_changes(demos, match_columns(demos))) == {-1}


def test_absolute_positions_are_no_changes():
    for demos in (make_arm_demos(), load_demonstrations(EMBEDDED_DEMOS)):
        assert set(match_changes(demos, match_columns(demos))) == {-1}
        assert set(match_changes(demos, ())) == {-1}


def test_changes_of_wrapped_angles_match():
    demos = make_delta_demos()
    obs = demos.obs.copy()
    obs[:, 0] = (obs[:, 0] + 2) % 1.0 * 2 * np.pi
    act = np.diff(obs[:, :1], axis=0, append=obs[-1:, :1])
    act = (act + np.pi) % (2 * np.pi) - np.pi
    angle = Demonstrations(obs, act, demos.episode_ends, angles=(0,))
    assert match_changes(angle, (-1,)) == (0,)


def test_constant_columns_do_not_match():
    demos = make_arm_demos()
    obs, act = demos.obs.copy(), demos.act.copy()
    obs[:, 2] = act[:, 2] = 0.25
    assert match(demos, obs, act) == (0, 1, -1, 3, 4, 5, 6, -1)


def test_wrapped_angles_match_across_the_turn():
    demos = make_arm_demos()
    obs, act = demos.obs.copy(), demos.act.copy()
    obs[:, 0] = (obs[:, 0] + 2) % (2 * np.pi)
    act[:, 0] = (act[:, 0] + 2) % (2 * np.pi)
    act[::7, 0] -= 2 * np.pi
    assert match(demos, obs, act, angles=(0,), act_angles=(0,)) == (*range(7), -1)
    assert match(demos, obs, act)[0] == -1


def test_an_observation_column_is_used_once():
    demos = make_arm_demos()
    assert match(demos, demos.obs, demos.act[:, [0, 0]] + np.float32([0, 0.2])) == (0, -1)


def test_a_joint_that_deviates_matches_in_line_with_the_others_only():
    demos = make_arm_demos()
    act = demos.act.copy()
    act[:, 3] += 0.5 * act[:, 3].std()  # a joint that sags under its load
    assert match(demos, demos.obs, act) == (*range(7), -1)
    assert match(demos, demos.obs, act[:, 3:4]) == (-1,)


def test_unmatched_columns_start_at_a_recorded_median():
    demos = make_arm_demos(episodes=8)
    first = demos.act[demos.starts, 7]
    assert set(first) == {0.0, 1.0}
    columns = match_columns(demos)
    (value,) = measure_first_action(demos, columns)
    assert value in (0.0, 1.0)
    assert format_matches((*columns, 9)) == "action 0-6 = observation 0-6, action 8 = observation 9"


def make_slow_arm(*, delay: int, lag: float, spread: float, seed: int = 0) -> Demonstrations:
    """Make an arm that follows late; it is observed with its velocities and sensors that are noise.

    Args:
        delay: Frames until a command has an effect.
        lag: Share of the distance to the command that is left after one frame.
        spread: Standard deviation of the places where episodes start.
        seed: Seed of paths and noise.
    """
    rng, frames, episodes = np.random.default_rng(seed), 80, 20
    home = np.array([0, -0.785, 0, -2.356, 0, 1.57, 0.785])
    time = np.arange(frames)[:, None] / 20
    obs, act = [], []
    for _ in range(episodes):
        turn = 2 * np.pi * (rng.uniform(0.2, 0.6, 7) * time + rng.uniform(0, 1, 7))
        command = home + rng.normal(0, spread, 7) + 0.4 * np.minimum(time, 1) * np.sin(turn)
        joints = command.copy()
        for t in range(1, frames):
            goal = command[max(t - 1 - delay, 0)]
            joints[t] = goal + lag * (joints[t - 1] - goal)
        seen = joints + rng.normal(0, 0.002, joints.shape)
        obs.append(np.hstack([rng.normal(size=seen.shape), 20 * np.gradient(joints, axis=0), seen]))
        act.append(command)
    ends = frames * np.arange(1, episodes + 1)
    return Demonstrations(np.float32(np.concatenate(obs)), np.float32(np.concatenate(act)), ends)


@pytest.mark.parametrize(
    ("delay", "lag", "spread"), [(4, 0.5, 0.0), (8, 0.0, 0.0), (0, 0.8, 0.0), (4, 0.9, 0.02), (0, 0.95, 0.1)]
)
def test_an_arm_that_follows_late_matches_its_joints(delay: int, lag: float, spread: float):
    assert match_columns(make_slow_arm(delay=delay, lag=lag, spread=spread)) == tuple(range(14, 21))


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_velocities_and_noise_of_a_late_arm_do_not_match(spread: float):
    demos = make_slow_arm(delay=4, lag=0.5, spread=spread)
    assert set(match_columns(demos.select_columns(range(14)))) == {-1}
    velocities = np.gradient(demos.act, axis=0)
    assert set(match(demos, demos.obs, velocities)) == {-1}


def test_many_columns_are_compared_in_little_memory():
    rng, width = np.random.default_rng(0), 300
    obs = np.cumsum(rng.normal(size=(20_000, width)), axis=0, dtype=np.float32)
    order = rng.permutation(width)
    demos = Demonstrations(obs, obs[:, order], 500 * np.arange(1, 41))
    tracemalloc.start()
    assert match_columns(demos) == tuple(order)
    assert set(match_changes(demos, [-1] * width)) == {-1}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * obs.nbytes


@pytest.mark.parametrize(
    ("store", "matches"),
    [("g1_real", "action 0-25 = observation 0-25"), ("adroit_door_human", ""), ("adroit_pen_expert", "")],
)
def test_public_demonstrations_match_as_known(store: str, matches: str, human_demos: Path):
    path = human_demos.parent / f"{store}.zarr"
    if not path.exists():
        pytest.skip(f"no demonstrations at {path}")
    assert format_matches(match_columns(load_demonstrations(path))) == matches
