"""Tests for policy/policy.py, with the shipped policy."""

import numpy as np
import pytest

from nsde_policy.core.networks import MLP
from nsde_policy.errors import PlanError, PolicyInputError
from nsde_policy.interface.planner import History
from nsde_policy.policy.policy import Policy
from tests.helpers.rng import make_rng

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.from_pretrained()


@pytest.fixture
def history(policy) -> History:
    """Return a history with one observation."""
    history = policy.spec.new_history()
    history.add_observation(START)
    return history


def test_plan_makes_one_network_call_per_action(policy, history, monkeypatch):
    calls, forward = [], MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda *args: calls.append(1) or forward(*args))
    policy.plan(history, generator=make_rng())
    assert len(calls) == policy.chunk == policy.model.network_calls(policy.chunk)
    calls.clear()
    first = policy.plan(history, generator=make_rng(), steps=1)
    assert len(calls) == 1
    assert first.actions.shape == (1, 2)


def test_chunk_is_executed_before_the_next_plan(policy, history):
    policy.reset(seed=0)
    chunk = [policy.select_action(START) for _ in range(8)]
    assert np.allclose(chunk, policy.plan(history, generator=make_rng()).actions)


def test_planned_states_start_at_the_current_state_and_hold_the_actions(policy, history):
    plan = policy.plan(history, generator=make_rng())
    assert plan.states.shape == (9, 7)
    assert plan.states[0] == pytest.approx([*START, *START[:2]], abs=1e-4)
    assert np.array_equal(plan.states[1:, 5:], plan.actions)


def test_sampled_futures_have_the_predicted_standard_deviation(policy, history):
    plans = policy.plan_batch([history] * 2000, generators=[make_rng()] * 2000, steps=1, candidates=1)
    std = policy.plan_from(history.states(), steps=1, seed=0).std[0]
    assert np.std([plan.actions[0] for plan in plans], axis=0) == pytest.approx(std, rel=0.05)


def test_history_repeats_the_first_state_and_is_newest_first(history):
    assert np.array_equal(history.states()[0], history.states()[1])
    history.add_action([1.0, 2.0])
    history.add_observation(START + 1)
    now, before = history.states()
    assert now.tolist() == pytest.approx([*(START + 1), 1.0, 2.0], abs=1e-4)
    assert before.tolist() == pytest.approx([*START, *START[:2]], abs=1e-4)


def test_planning_with_an_empty_history_raises(policy):
    with pytest.raises(PolicyInputError, match="the history is empty"):
        policy.plan(policy.spec.new_history(), generator=make_rng())


def test_a_plan_that_is_not_finite_raises(policy):
    with pytest.raises(PlanError, match="planned actions are not finite in float32; check that the states"):
        policy.plan_from(np.full((2, 7), 1e30), steps=8, seed=0)
