"""Tests for plan selection in inference/policy.py: which plans a policy compares and executes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nsde_policy.assets import find_demos
from nsde_policy.data import load_demonstrations
from nsde_policy.interface.planner import Plan
from nsde_policy.policy.policy import Policy
from tests.helpers.rng import make_batch_rng, make_rng

DEMO = load_demonstrations(find_demos("pusht"), angles=(4,))[0]
NEAR, FAR = (np.concatenate([DEMO.obs[i], DEMO.act[i]])[None].repeat(2, 0) for i in (-1, 0))
"""States at the end and at the beginning of a demonstration, with a history of two."""


@pytest.fixture
def policy(goal_run: Path) -> Policy:
    return Policy.from_pretrained(goal_run)


def assert_equal(one: Plan, other: Plan) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)


def test_near_the_goal_the_plan_that_ends_nearest_is_executed(policy: Policy):
    plan = policy.plan_from(NEAR, steps=16, seed=3)
    assert plan.candidates.shape == (16, 17, 7)
    assert plan.std is not None
    assert np.allclose(plan.candidates[:, 0], NEAR[0])
    ends = torch.from_numpy(plan.candidates[:, -1]).float()
    best = int(policy.selector.goal_distance(ends).argmin())
    assert np.array_equal(plan.candidates[best, 1:, 5:], plan.actions)
    assert np.array_equal(plan.states[1:, 5:], plan.actions)
    shorter = policy.plan_from(NEAR, steps=8, seed=3)  # judged at the same horizon
    assert np.array_equal(shorter.actions, plan.actions[:8])
    assert shorter.candidates.shape == (16, 9, 7)


def test_far_from_the_goal_one_plan_is_sampled(policy: Policy):
    assert policy.plan_from(FAR, steps=8, seed=3).candidates is None
    assert policy.use_selection("support").plan_from(FAR, steps=8, seed=3).candidates.shape == (8, 9, 7)


def test_a_plan_does_not_depend_on_other_rows_of_a_batch(policy: Policy):
    histories = [policy.spec.new_history() for _ in range(4)]
    for history, frame in zip(histories, (-1, 0, -2, -1), strict=True):
        history.add_observation(DEMO.obs[frame])
    together = policy.plan_batch(histories, generators=[make_rng(i) for i in range(4)])
    assert [plan.candidates is None for plan in together] == [False, True, False, False]
    for i, history in enumerate(histories):
        alone = policy.plan(history, generator=make_rng(i))
        assert np.allclose(alone.actions, together[i].actions, atol=1e-3)


def test_fewer_candidates_are_compared_on_request(policy: Policy):
    for most, compared in ((4, 4), (99, 16), (None, 16)):
        assert len(policy.plan_from(NEAR, steps=8, seed=3, candidates=most).candidates) == compared
    one, none = (policy.plan_from(NEAR, steps=8, seed=3, candidates=most) for most in (1, 0))
    assert one.candidates is None
    assert_equal(one, none)
    rng, states = make_batch_rng(1, seed=3), torch.from_numpy(NEAR[None]).float()
    sampling = policy.model.learned_sampling()  # as candidates are sampled
    expected = policy.model.plan(states, steps=8, rng=rng, sampling=sampling)[0]
    assert np.array_equal(one.actions, expected.detach().double())


def test_the_rule_none_plans_as_a_policy_without_selection(policy: Policy):
    without = Policy(policy.record, policy.model, policy.calibration)
    policy.use_selection("none")
    for states in (NEAR, FAR):
        assert_equal(policy.plan_from(states, steps=8, seed=5), without.plan_from(states, steps=8, seed=5))
    for chosen in (policy, without):
        chosen.reset(seed=2)
    assert np.array_equal(policy.select_action(DEMO.obs[-1]), without.select_action(DEMO.obs[-1]))
    assert (policy.sampling, policy.candidates) == (without.sampling, 1)
    assert policy.use_selection("auto").candidates == 16


def test_a_method_that_predicts_no_states_selects_plans_too(policy: Policy):
    """Sample actions alone: the dynamics model says where they lead."""
    policy.model.predicts_states = False  # type: ignore[misc]
    plan = policy.plan_from(NEAR, steps=8, seed=3)
    assert plan.states is None
    assert plan.candidates.shape == (16, 9, 7)


def test_settings_can_judge_more_actions_than_are_executed(policy: Policy):
    assert (policy.chunk, policy.find_horizon(4)) == (8, 16)
    config = policy.record.config.replace_parts(selection={"horizon": 12})
    record = replace(policy.record, config=config)
    policy = Policy(record, policy.model, policy.calibration, selector=policy.selector)
    assert policy.find_horizon(4) == 24
    longer = policy.plan_from(NEAR, steps=24, seed=3)
    assert np.array_equal(policy.plan_from(NEAR, steps=8, seed=3).actions, longer.actions[:8])
    assert policy.find_horizon(40) == 40
