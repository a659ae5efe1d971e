"""Tests for eval/score/linear_model.py: linear data, constant columns and angles."""

import numpy as np

from nsde_policy.core.spec import StateSpec
from nsde_policy.eval.score.linear_model import fit_linear_model


def make_spec(*circular: int) -> StateSpec:
    numbers = (0.0,) * 3, (1.0,) * 3, (1.0,) * 3
    return StateSpec(2, 1, circular, *numbers)


def make_linear(frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return states with a history of two, and actions that are linear in them."""
    states = np.random.default_rng(0).normal(3.0, [1.0, 20.0, 0.1], (frames, 2, 3))
    weights = np.random.default_rng(1).normal(size=(6, 4))
    return states, (states.reshape(frames, 6) @ weights + 5.0)[..., None]


def test_linear_actions_are_learned_whatever_the_units():
    states, actions = make_linear(500)
    predicted = fit_linear_model(states[:400], actions[:400], make_spec())(states[400:])
    assert np.abs(predicted - actions[400:]).max() < 0.02 * actions.std()


def test_a_column_that_was_constant_says_nothing():
    states, actions = make_linear(300)
    states[..., 1] = 7.0
    predict = fit_linear_model(states, actions, make_spec())
    elsewhere = states + np.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(predict(elsewhere), predict(states))


def test_a_full_turn_of_an_angle_changes_nothing():
    states, actions = make_linear(300)
    predict = fit_linear_model(states, actions, make_spec(0))
    turned = states + np.array([2 * np.pi, 0.0, 0.0])
    np.testing.assert_allclose(predict(turned), predict(states), rtol=1e-6)


def test_actions_that_are_angles_change_by_the_shorter_way():
    states = np.zeros((50, 1, 3))
    states[:, 0, 2] = np.linspace(-3, 3, 50)
    actions = (states[:, :, 2:] + 0.5 + np.pi) % (2 * np.pi) - np.pi
    predicted = fit_linear_model(states, actions, make_spec(2))(states)
    np.testing.assert_allclose(np.exp(1j * predicted), np.exp(1j * actions), atol=1e-6)
