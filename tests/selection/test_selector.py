"""Tests for selection/selector.py and selection/rule.py: costs, choices and the gate."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nsde_policy.config import NetworkConfig, SelectionConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.data.goal import GATE, Goal
from nsde_policy.errors import ConfigError
from nsde_policy.selection.dynamics import DynamicsModel
from nsde_policy.selection.rule import Choice, SelectionRule
from nsde_policy.selection.selector import PlanSelector
from tests.helpers.rng import make_rng

SPEC = StateSpec(3, 1, (2,), low=(-9.0,) * 4, high=(9.0,) * 4, increment_std=(0.5, 1.0, 0.25, 1.0))
RULE = SelectionRule("goal", columns=(0, 2), threshold=1.0)
REFERENCES = torch.tensor([[0.0, 0.0, 0.0], [4.0, 0.0, 3.0]])
GOAL = Goal((0, 2), np.array([1.0, 3.1]), np.diag([2.0, 10.0]), (1,))


def build(kind: Choice) -> PlanSelector:
    network = SelectionConfig(network=NetworkConfig(width=8, depth=1))
    dynamics = DynamicsModel(network, SPEC, history=2, generator=make_rng())
    selector = PlanSelector(RULE.choose(kind), dynamics, directions=2, references=2)
    selector.set_goal(GOAL)
    selector.set_references(REFERENCES)
    return selector.eval()


def make_futures(*ends: tuple[float, float, float]) -> torch.Tensor:
    """Make observations (1, plans, 2 steps, 3) of plans that all begin far away."""
    return torch.stack([torch.tensor([[50.0, 50.0, 0.0], end]) for end in ends])[None]


def test_the_goal_rule_takes_the_plan_that_ends_nearest_whatever_happens_before():
    selector = build("goal")
    futures = make_futures((1.5, 0, 3.1), (1.1, 80, 3.1 - 2 * np.pi), (1.2, 0, 3.1), (1.0, 0, 2.8))
    costs = selector.judge(futures)
    assert torch.allclose(costs, torch.tensor([[0.5, 0.02, 0.08, 4.5]]), atol=1e-3)
    assert selector.choose(costs).tolist() == [1]
    expected = GOAL.distance(futures[0, :, -1].double().numpy())
    assert torch.allclose(costs[0].double(), torch.from_numpy(expected), atol=1e-4)


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        ([3.0, 0.9, 0.1, 1.0], 1),
        ([1.0, 0.0, 0.0, 0.0], 0),
        ([3.0, 1.5, 1.2, 2.0], 2),
        ([-0.0, 0.5, 2.0, 0], 0),
    ],
)
def test_the_support_rule_takes_the_first_plan_within_the_threshold_else_the_nearest(costs, chosen):
    assert build("support").choose(torch.tensor([costs, [9.0, 9.0, 9.0, 1.0]])).tolist() == [chosen, 3]


def test_support_is_the_largest_distance_on_the_way_to_the_nearest_reference():
    selector = build("support")
    turned = REFERENCES[:, None] + torch.tensor([[0.0, 0.0, 2 * np.pi], [0.5, 0.0, 0.0]])
    assert torch.allclose(selector.support_distance(turned[:, 0]), torch.zeros(2), atol=0.02)
    assert selector.judge(turned)[1] == pytest.approx(1.0, abs=1e-3)  # one typical increment
    far = torch.stack([torch.tensor([0.0, 7.0, 0.0]), REFERENCES[0]])
    assert selector.judge(far) == pytest.approx(7.0, abs=1e-3)


def test_plans_are_compared_near_the_goal_everywhere_or_nowhere():
    states = torch.zeros(3, 2, 4)
    states[:, 0, :3] = torch.tensor(
        [[1.0, 30.0, 3.1], [1.0, 0.0, 0.0], [1.0 + np.sqrt(GATE / 2) * 1.01, 0.0, 3.1]]
    )
    assert build("goal").compares(states).tolist() == [True, False, False]
    assert build("support").compares(states).tolist() == [True] * 3
    assert build("none").compares(states).tolist() == [False] * 3


def test_a_saved_selector_judges_the_same():
    one, other = build("goal"), PlanSelector(RULE, build("none").dynamics, directions=2, references=2)
    torch.nn.init.normal_(one.dynamics.network.layers[0].weight, generator=make_rng(5))
    other.load_state_dict(one.state_dict())
    futures = make_futures((1.5, 0, 3.1), (0.0, 8.0, 1.0))
    assert torch.equal(one.judge(futures), other.judge(futures))
    assert torch.equal(one.support_distance(futures), other.support_distance(futures))
    states, actions = torch.ones(1, 2, 4), torch.ones(1, 3, 1)
    assert torch.equal(one.dynamics.predict(states, actions), other.dynamics.predict(states, actions))


def test_a_rule_without_a_goal_cannot_select_by_it():
    rule = replace(RULE, kind="support", columns=())
    with pytest.raises(ConfigError, match="use --select support or --select none"):
        rule.choose("goal")
    assert rule.choose("auto") == rule
    assert (rule.candidates, rule.horizon(8), RULE.candidates, RULE.horizon(8)) == (8, 8, 16, 16)
