"""Tests for data/action_columns.py: which action columns are observed positions."""

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
