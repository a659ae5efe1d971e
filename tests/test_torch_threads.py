"""Tests for nsde_policy/torch_threads.py: a plan uses one torch thread, and the caller's settings stay."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from nsde_policy.core.networks import MLP
from nsde_policy.policy.policy import Policy
from nsde_policy.torch_threads import count_cores, count_threads

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])
STATES = np.tile([*START, 235.0, 124.0], (2, 1))


@pytest.fixture
def policy(monkeypatch):
    """Return the shipped policy; `policy.used` collects the number of torch threads of each network call."""
    policy, forward, policy_threads = Policy.from_pretrained(), MLP.forward, set()

    def record(self, *features):
        policy_threads.add(torch.get_num_threads())
        return forward(self, *features)

    monkeypatch.setattr(MLP, "forward", record)
    policy.used = policy_threads
    torch.set_num_threads(3)
    yield policy
    torch.set_num_threads(1)


def test_a_plan_uses_one_thread_or_as_many_as_are_set_and_the_callers_settings_stay(policy):
    policy.select_action(START)
    alone = policy.plan_from(STATES, steps=8, seed=5)
    assert policy.used == {1}
    policy.threads = 2
    policy.used.clear()
    shared = policy.plan_from(STATES, steps=8, seed=5)
    assert policy.used == {2}
    assert np.array_equal(alone.actions, shared.actions)
    with ThreadPoolExecutor() as new_thread:
        assert new_thread.submit(torch.get_num_threads).result() == torch.get_num_threads() == 3


@pytest.mark.parametrize(("value", "expected"), [("1", 1), ("3,2", 3), ("", None), ("many", None)])
def test_threads_of_convolutions_are_those_of_the_environment_or_all_cores(value, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert count_threads() == (expected or count_cores())
