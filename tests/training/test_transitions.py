"""Tests for data/transitions.py."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsde_policy.data import (
    PUSHT_ANGLES,
    CurrentAction,
    Demonstrations,
    PreviousAction,
    load_demonstrations,
    transitions,
)
from nsde_policy.errors import ConfigError, EpisodeError

LENGTHS = st.lists(st.integers(2, 12), min_size=1, max_size=6)


def labelled(lengths: list[int]) -> Demonstrations:
    """Observations (episode, step); actions (1000 + episode, step)."""
    rows = np.array([(e, t) for e, length in enumerate(lengths) for t in range(length)], np.float32)
    return Demonstrations(obs=rows, act=rows + np.array([1000, 0]), episode_ends=np.cumsum(lengths))


@given(LENGTHS, st.integers(1, 4))
def test_every_pair_and_its_past_is_from_one_episode(lengths: list[int], history: int) -> None:
    pairs = transitions(labelled(lengths), action=CurrentAction(), history=history)

    assert len(pairs) == sum(lengths) - len(lengths)
    np.testing.assert_array_equal(pairs.x[:, 0], pairs.episode)
    np.testing.assert_array_equal(pairs.x_next[:, 0], pairs.episode)
    np.testing.assert_array_equal(pairs.x_next[:, 1] - pairs.x[:, 1], 1)
    assert pairs.past.shape == (len(pairs), history - 1, 4)
    for k in range(1, history):
        np.testing.assert_array_equal(pairs.past[:, -k, 0], pairs.episode)
        np.testing.assert_array_equal(pairs.past[:, -k, 1], np.maximum(pairs.x[:, 1] - k, 0))


@given(LENGTHS)
def test_the_previous_action_is_of_the_same_episode_and_the_next_state_holds_the_command(
    lengths: list[int],
) -> None:
    pairs = transitions(labelled(lengths), action=PreviousAction(first=(1, 0)))

    first = pairs.x[:, 1] == 0
    np.testing.assert_array_equal(pairs.x[first, 2], 0)
    np.testing.assert_array_equal(pairs.x[first, 3], pairs.episode[first])
    np.testing.assert_array_equal(pairs.x[~first, 2], 1000 + pairs.episode[~first])
    np.testing.assert_array_equal(pairs.x[~first, 3], pairs.x[~first, 1] - 1)
    np.testing.assert_array_equal(pairs.x_next[:, 2], 1000 + pairs.episode)
    np.testing.assert_array_equal(pairs.x_next[:, 3], pairs.x[:, 1])


def test_other_rules_for_the_first_previous_action() -> None:
    demos = labelled([3, 2])
    starts = [0, 2]
    zeros = transitions(demos, action=PreviousAction(first="zeros"))
    np.testing.assert_array_equal(zeros.x[starts, 2:], 0)
    repeated = transitions(demos, action=PreviousAction(first="repeat"))
    np.testing.assert_array_equal(repeated.x[starts, 2:], [[1000, 0], [1001, 0]])


@pytest.mark.parametrize("first", [(0,), (0, 2), (-1, 0), "ones"])
def test_a_rule_that_makes_no_action_is_refused(first: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="2 observation columns from 0 to 1"):
        transitions(labelled([3]), action=PreviousAction(first=first))


def test_history_counts_the_present() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        transitions(labelled([3]), action=CurrentAction(), history=0)


def test_increments_of_angles_are_taken_on_the_circle() -> None:
    true = np.arange(40)[:, None] * 0.5
    wrapped = np.concatenate([true, true], axis=1) % (2 * np.pi)
    demos = Demonstrations(obs=wrapped, act=wrapped, episode_ends=[20, 40], angles=(1,), act_angles=(0,))

    pairs = transitions(demos, action=CurrentAction(), history=3)

    path = np.concatenate([pairs.past, pairs.x[:, None], pairs.x_next[:, None]], axis=1)
    steps = np.diff(path, axis=1)
    np.testing.assert_allclose(steps[:, -1, 1:3], 0.5, atol=1e-5)
    assert np.abs(steps[..., 1:3]).max() < 0.6
    assert np.abs(steps[..., 0]).max() > 5, "a column that is not an angle is left alone"
    np.testing.assert_array_equal(pairs.x[:19], np.concatenate([demos.obs, demos.act], axis=1)[:19])


def test_records_are_checked_and_read_only() -> None:
    pairs = transitions(labelled([3]), action=CurrentAction())
    with pytest.raises(ValueError, match="read-only"):
        pairs.x[0] = 0
    with pytest.raises(EpisodeError, match="x_next is"):
        replace(pairs, x_next=pairs.x_next[1:])
    with pytest.raises(EpisodeError, match="known is"):
        replace(pairs, known=pairs.known[:, :1])


def test_human_demonstrations_never_turn_the_block_fast(human_demos: Path) -> None:
    raw = load_demonstrations(human_demos)
    demos = load_demonstrations(human_demos, angles=PUSHT_ANGLES)
    rule = PreviousAction(first=(0, 1))

    turned = np.abs(np.subtract(*(getattr(transitions(demos, action=rule), n) for n in ("x_next", "x"))))[
        :, 4
    ]
    artefact = np.abs(np.subtract(*(getattr(transitions(raw, action=rule), n) for n in ("x_next", "x"))))[
        :, 4
    ]

    assert len(turned) == 25_650 - 206
    assert turned.max() < 0.5
    assert artefact.max() > 6


def test_a_final_action_is_learned_without_the_observation_nobody_recorded() -> None:
    demos = labelled([3, 5])
    plain = transitions(demos, action=PreviousAction(first="zeros"))
    pairs = transitions(demos, action=PreviousAction(first="zeros"), final_actions=True)

    assert len(pairs) == len(plain) + 2
    final = ~pairs.known.all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(final), [2, 7])
    obs_dim = demos.obs.shape[1]
    np.testing.assert_array_equal(pairs.x_next[final, obs_dim:], demos.act[demos.episode_ends - 1])
    np.testing.assert_array_equal(pairs.x[final, :obs_dim], demos.obs[demos.episode_ends - 1])
    assert not pairs.known[final, :obs_dim].any()
    assert pairs.known[final, obs_dim:].all()
    for name in ("x", "x_next", "past", "known", "episode"):
        np.testing.assert_array_equal(getattr(pairs, name)[~final], getattr(plain, name))


def test_final_actions_need_the_previous_action() -> None:
    with pytest.raises(ConfigError, match="previous action"):
        transitions(labelled([3]), action=CurrentAction(), final_actions=True)
