"""Tests for training/dataset.py: transitions and windows of demonstrations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.data import Demonstrations
from nsde_policy.errors import ConfigError
from nsde_policy.run_config import DemoConfig
from nsde_policy.training.dataset import build_states, build_transitions, build_windows

LENGTHS = st.lists(st.integers(2, 12), min_size=1, max_size=6)


def make_labelled_demos(lengths: list[int]) -> Demonstrations:
    """Return demonstrations whose observations are (episode, step) and actions (1000 + episode, step)."""
    rows = np.array([(e, t) for e, length in enumerate(lengths) for t in range(length)], np.float32)
    return Demonstrations(obs=rows, act=rows + np.array([1000, 0]), episode_ends=np.cumsum(lengths))


@given(LENGTHS, st.integers(1, 4))
def test_pairs_and_histories_stay_within_one_episode(lengths: list[int], history: int) -> None:
    pairs = build_transitions(make_labelled_demos(lengths), DemoConfig(first_action_from=()), history=history)

    assert len(pairs) == sum(lengths) - len(lengths)
    seen = pairs.x.numpy().reshape(len(pairs), history, 4)
    episode, step = seen[:, 0, 0], seen[:, 0, 1]
    np.testing.assert_array_equal(pairs.x_next[:, 0], episode)
    np.testing.assert_array_equal(pairs.x_next[:, 1], step + 1)
    for lag in range(history):
        np.testing.assert_array_equal(seen[:, lag, 0], episode)
        np.testing.assert_array_equal(seen[:, lag, 1], np.maximum(step - lag, 0))


@given(LENGTHS)
def test_state_holds_the_previous_action_and_next_state_the_current_one(lengths: list[int]) -> None:
    pairs = build_transitions(make_labelled_demos(lengths), DemoConfig(first_action_from=(1, 0)))
    x, x_next = pairs.x.numpy(), pairs.x_next.numpy()

    first = x[:, 1] == 0
    np.testing.assert_array_equal(x[first, 2], 0)
    np.testing.assert_array_equal(x[first, 3], x[first, 0])
    np.testing.assert_array_equal(x[~first, 2], 1000 + x[~first, 0])
    np.testing.assert_array_equal(x[~first, 3], x[~first, 1] - 1)
    np.testing.assert_array_equal(x_next[:, 2], 1000 + x[:, 0])
    np.testing.assert_array_equal(x_next[:, 3], x[:, 1])


@pytest.mark.parametrize("columns", [(0,), (0, 2)])
def test_wrong_columns_for_the_first_action_are_rejected(columns: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="2 observation columns from 0 to 1"):
        build_states(make_labelled_demos([3]), DemoConfig(first_action_from=columns))


def test_constants_replace_the_action_before_the_first_in_unmatched_columns() -> None:
    demos = make_labelled_demos([3, 2])
    constant = DemoConfig(first_action_from=(-1, 0), first_action=(7.5,))
    first = build_states(demos, constant)[demos.starts, 2:]
    np.testing.assert_array_equal(first[:, 0], 7.5)
    np.testing.assert_array_equal(first[:, 1], demos.obs[demos.starts, 0])
    np.testing.assert_array_equal(build_states(demos, DemoConfig(first_action_from=()))[demos.starts, 2:], 0)
    for constants in ((), (1.0, 2.0)):
        with pytest.raises(ConfigError, match="first_action must hold 1 finite"):
            build_states(demos, replace(constant, first_action=constants))


def test_increments_of_angles_have_no_jumps() -> None:
    true = np.arange(40)[:, None] * 0.5
    wrapped = np.concatenate([true, true], axis=1) % (2 * np.pi)
    demos = Demonstrations(obs=wrapped, act=wrapped, episode_ends=[20, 40], angles=(1,), act_angles=(0,))

    pairs = build_transitions(demos, DemoConfig(first_action_from=(0, 1)), history=3)

    seen = pairs.x.numpy().reshape(len(pairs), 3, 4)[:, ::-1]
    path = np.concatenate([seen, pairs.x_next.numpy()[:, None]], axis=1)
    steps = np.diff(path, axis=1)
    np.testing.assert_allclose(steps[:, -1, 1], 0.5, atol=1e-5)
    assert np.abs(steps[..., 1:3]).max() < 0.6
    assert np.abs(steps[..., 0]).max() > 5, "a column that is not an angle stays as recorded"
    np.testing.assert_array_equal(seen[:19, -1, :2], demos.obs[:19])


def test_final_actions_are_weighted_and_unrecorded_observations_are_ignored() -> None:
    demos = make_labelled_demos([3, 5])
    plain = build_transitions(demos, DemoConfig(first_action_from=()))
    pairs = build_transitions(demos, DemoConfig(first_action_from=()), final_action_weight=7.0)

    final = (pairs.weight != 1).any(dim=1).numpy()
    np.testing.assert_array_equal(np.flatnonzero(final), [2, 7])
    last = demos.episode_ends - 1
    np.testing.assert_array_equal(pairs.x_next[final, 2:], demos.act[last])
    np.testing.assert_array_equal(pairs.x[final, :2], demos.obs[last])
    np.testing.assert_array_equal(pairs.weight[final], [[0, 0, 7, 7]] * 2)
    for name in ("x", "x_next", "dt", "weight"):
        np.testing.assert_array_equal(getattr(pairs, name)[~final], getattr(plain, name))


def diffusion_policy_windows(length: int, horizon: int, history: int, chunk: int) -> list[list[int]]:
    """Return the frames of each window by the rule of Diffusion Policy's sampler, or one padded window."""
    starts = range(-(history - 1), max(length - horizon + chunk - 1, -(history - 1)) + 1)
    return [[min(max(start + i, 0), length - 1) for i in range(horizon)] for start in starts]


@given(
    st.lists(st.integers(2, 12), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_windows_equal_those_of_diffusion_policy(
    lengths: list[int], history: int, chunk: int, extra: int
) -> None:
    horizon = history - 1 + chunk + extra

    windows = build_windows(
        make_labelled_demos(lengths),
        DemoConfig(first_action_from=()),
        horizon=horizon,
        history=history,
        n_action_steps=chunk,
    )

    expected = [
        [(1000 + e, t) for t in window]
        for e, length in enumerate(lengths)
        for window in diffusion_policy_windows(length, horizon, history, chunk)
    ]
    np.testing.assert_array_equal(windows.actions, np.array(expected))
    seen = windows.states.numpy()[:, ::-1, :2]
    np.testing.assert_array_equal(seen, windows.actions.numpy()[:, :history] - [1000, 0])


def test_windows_have_no_jumps_of_angles() -> None:
    wrapped = np.arange(60)[:, None] * 0.5 % (2 * np.pi)
    demos = Demonstrations(obs=wrapped, act=wrapped, episode_ends=[30, 60], angles=(0,), act_angles=(0,))

    windows = build_windows(
        demos, DemoConfig(first_action_from=(0,)), horizon=16, history=3, n_action_steps=8
    )

    seen, actions = windows.states.numpy()[..., :1], windows.actions.numpy()
    for path in (seen, actions):
        assert np.abs(np.diff(path, axis=1)).max() == pytest.approx(0.5, abs=1e-5)
    present = seen[:, 0]
    assert ((present >= 0) & (present < 2 * np.pi)).all(), "the current observation is as recorded"
    np.testing.assert_array_equal(actions[:, 2], present)
