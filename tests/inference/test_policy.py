"""Tests for policy.py, with the policy that comes with the package."""

import numpy as np
import pytest
import torch

from nsde_policy.errors import PolicyInputError
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.neural_sde.fused_step import FusedStep

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.from_pretrained()


def test_the_shipped_policy_is_small_and_knows_its_sizes(policy):
    assert (policy.obs_dim, policy.act_dim, policy.chunk) == (5, 2, 8)
    assert sum(p.numel() for p in policy.model.parameters()) * 4 < 3e6


def test_one_seed_gives_one_sequence_of_actions(policy):
    def actions(seed):
        policy.reset(seed=seed)
        return np.array([policy.select_action(START) for _ in range(20)])

    assert np.array_equal(actions(4), actions(4))
    assert not np.array_equal(actions(4), actions(5))


def test_a_chunk_costs_one_network_call_per_action_and_the_first_action_one(policy, monkeypatch):
    calls = 0
    trunk = FusedStep._trunk

    def count(self, features):
        nonlocal calls
        calls += 1
        return trunk(self, features)

    monkeypatch.setattr(FusedStep, "_trunk", count)
    memory = policy.spec.new_history()
    memory.add_observation(START)
    policy.plan(memory, generator=torch.Generator().manual_seed(0))
    assert calls == policy.chunk == policy.model.network_calls(policy.chunk)
    calls = 0
    first = policy.plan(memory, generator=torch.Generator().manual_seed(0), chunk=1)
    assert calls == 1
    assert first.actions.shape == (1, 2)


def test_a_chunk_is_executed_before_it_plans_again(policy):
    policy.reset(seed=0)
    chunk = [policy.select_action(START) for _ in range(8)]
    fresh = policy.predict_action_chunk(START, generator=torch.Generator().manual_seed(0))
    assert np.allclose(chunk, fresh)


def test_planned_states_start_at_the_present_and_hold_the_actions(policy):
    memory = policy.spec.new_history()
    memory.add_observation(START)
    plan = policy.plan(memory, generator=torch.Generator().manual_seed(0))
    assert plan.states.shape == (9, 7)
    assert plan.states[0] == pytest.approx([*START, *START[:2]], abs=1e-4)
    assert np.array_equal(plan.states[1:, 5:], plan.actions)


def test_sampled_futures_differ_and_each_has_a_likelihood(policy):
    memory = policy.spec.new_history()
    memory.add_observation(START)
    paths = policy.sample(memory, n=32, steps=8, generator=torch.Generator().manual_seed(0))
    assert paths.shape == (9, 32, 7)
    assert bool((paths[-1].std(dim=0) > 0).all())
    likelihood = policy.model.path_log_prob(paths)
    assert likelihood.shape == (32,)
    assert bool(likelihood.isfinite().all())


def test_the_next_state_is_as_unsure_as_it_says(policy):
    memory = policy.spec.new_history()
    memory.add_observation(START)
    sampled = policy.sample(memory, n=4000, steps=1, generator=torch.Generator().manual_seed(0))[1]
    assert sampled.std(dim=0).numpy() == pytest.approx(policy.step_std(memory), rel=0.05)


def test_memory_repeats_the_first_state_and_keeps_the_newest_first(policy):
    memory = policy.spec.new_history()
    memory.add_observation(START)
    assert np.array_equal(memory.states()[0], memory.states()[1])
    memory.add_action([1.0, 2.0])
    memory.add_observation(START + 1)
    now, before = memory.states()
    assert now.tolist() == pytest.approx([*(START + 1), 1.0, 2.0], abs=1e-4)
    assert before.tolist() == pytest.approx([*START, *START[:2]], abs=1e-4)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(4), r"shape \(5,\), got \(4,\)"),
        (np.zeros((2, 5)), r"shape \(5,\), got \(2, 5\)"),
        (np.full(5, np.nan), "must be finite"),
        ([np.inf, 0, 0, 0, 0], "must be finite"),
    ],
)
def test_an_observation_that_cannot_be_right_is_refused(policy, obs, message):
    policy.reset()
    with pytest.raises(PolicyInputError, match=message):
        policy.select_action(obs)


def test_a_policy_that_has_seen_nothing_does_not_plan(policy):
    with pytest.raises(PolicyInputError, match="the history is empty"):
        policy.plan(policy.spec.new_history(), generator=torch.Generator())
