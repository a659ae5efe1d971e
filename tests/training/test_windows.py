"""Tests for data/windows.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.data import Demonstrations, Windows, windows
from nsde_policy.errors import ConfigError, EpisodeError


def labelled(lengths: list[int]) -> Demonstrations:
    """Observations and actions (episode, step)."""
    rows = np.array([(e, t) for e, length in enumerate(lengths) for t in range(length)], np.float32)
    return Demonstrations(obs=rows, act=rows, episode_ends=np.cumsum(lengths))


def diffusion_policy_windows(length: int, horizon: int, n_obs: int, n_act: int) -> list[list[int]]:
    """Frames of each window by the rule of Diffusion Policy's sampler, one window where it has none."""
    starts = range(-(n_obs - 1), max(length - horizon + n_act - 1, -(n_obs - 1)) + 1)
    return [[min(max(start + i, 0), length - 1) for i in range(horizon)] for start in starts]


@given(
    st.lists(st.integers(2, 12), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_windows_are_those_of_diffusion_policy(
    lengths: list[int], n_obs: int, n_act: int, extra: int
) -> None:
    horizon = n_obs - 1 + n_act + extra

    cut = windows(labelled(lengths), horizon=horizon, n_obs_steps=n_obs, n_action_steps=n_act)

    expected = [
        [(e, t) for t in window]
        for e, length in enumerate(lengths)
        for window in diffusion_policy_windows(length, horizon, n_obs, n_act)
    ]
    np.testing.assert_array_equal(cut.act, np.array(expected))
    np.testing.assert_array_equal(cut.obs, cut.act[:, :n_obs])
    np.testing.assert_array_equal(cut.act[..., 0], np.repeat(cut.episode[:, None], horizon, axis=1))


def test_no_window_holds_a_jump_of_an_angle() -> None:
    wrapped = np.arange(60)[:, None] * 0.5 % (2 * np.pi)
    demos = Demonstrations(obs=wrapped, act=wrapped, episode_ends=[30, 60], angles=(0,), act_angles=(0,))

    cut = windows(demos, horizon=16, n_obs_steps=3, n_action_steps=8)

    for path in (cut.obs, cut.act):
        assert np.abs(np.diff(path, axis=1)).max() == pytest.approx(0.5, abs=1e-5)
    present = cut.obs[:, -1]
    assert (present >= 0).all()
    assert (present < 2 * np.pi).all(), "the present observation is as recorded"
    np.testing.assert_array_equal(cut.act[:, 2], present)


@pytest.mark.parametrize("sizes", [(4, 3, 3), (4, 0, 1), (4, 1, 0), (0, 1, 1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    horizon, n_obs, n_act = sizes
    with pytest.raises(ConfigError, match="<= horizon"):
        windows(labelled([5]), horizon=horizon, n_obs_steps=n_obs, n_action_steps=n_act)


def test_records_are_checked_and_read_only() -> None:
    cut = windows(labelled([5]), horizon=4, n_obs_steps=2, n_action_steps=2)
    with pytest.raises(ValueError, match="read-only"):
        cut.act[0] = 0
    with pytest.raises(EpisodeError, match="windows need"):
        Windows(obs=cut.obs, act=cut.act[1:], episode=cut.episode)
