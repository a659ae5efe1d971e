"""Tests for plans as CUDA graphs: the same plans as without them; skipped without a GPU."""

import numpy as np
import pytest
import torch

from nsde_policy.methods.base import BatchRng
from nsde_policy.policy.graphs import GraphCache
from nsde_policy.policy.policy import Policy

pytestmark = pytest.mark.gpu


def make_rng(count: int) -> BatchRng:
    return BatchRng([torch.Generator().manual_seed(seed) for seed in range(count)], "cuda")


def test_replays_compute_the_rows_and_random_numbers_they_are_given():
    cache, calls = GraphCache(), []

    def add(tensors, rng):
        calls.append(len(tensors[0]))
        noise, share = (numbers.unflatten(0, (-1, 2)) for numbers in (rng.normal(3), rng.uniform()))
        return {"sum": tensors[0] + noise.sum(1), "share": share}

    for rows in (5, 7, 8, 3):
        given = torch.arange(3.0 * rows, device="cuda").view(rows, 3)
        found = cache.call("add", add, [given], make_rng(2 * rows))
        torch.testing.assert_close(found, add([given], make_rng(2 * rows)))
    captured = [size for size in calls if size in (4, 8)]
    assert captured == [8, 8, 8, 4, 4], "twice for each graph, and once without one"


def test_what_waits_for_the_gpu_is_computed_without_a_graph():
    cache, given = GraphCache(), [torch.ones(3, 2, device="cuda")]

    def wait(tensors, _):
        return {"scaled": tensors[0] * tensors[0].sum().item()}

    for _ in range(2):
        found = cache.call("wait", wait, given, make_rng(0))["scaled"]
        assert found.tolist() == [[6.0, 6.0]] * 3
    found = cache.call("double", lambda tensors, _: {"twice": 2 * tensors[0]}, given, make_rng(0))["twice"]
    assert found.tolist() == [[2.0, 2.0]] * 3
    assert [graph is None for graph in cache._graphs.values()] == [True, False]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_plans_near_the_goal_and_far_from_it_are_those_of_the_cpu():
    policies = [Policy.from_pretrained(None).to(device) for device in ("cpu", "cuda")]
    spec, rule, selector = policies[0].spec, policies[0].rule, policies[0].selector
    assert selector is not None
    far = np.tile(np.add(spec.low, spec.high) / 2, (spec.history, 1))
    near = far.copy()
    near[:, list(rule.columns)] = selector.goal.numpy()
    states = [near, far, far, near, far]
    for candidates in (16, 4, 1):
        plans = [
            policy.plan_rows(states, steps=8, seeds=range(5), candidates=candidates) for policy in policies
        ]
        for one, other in zip(*plans, strict=True):
            np.testing.assert_allclose(other.actions, one.actions, atol=0.05)  # of a table of 512
            np.testing.assert_allclose(other.std, one.std, rtol=0.01)
        assert [plan.candidates is not None for plan in plans[1]] == [
            candidates > 1 and state is near for state in states
        ]
