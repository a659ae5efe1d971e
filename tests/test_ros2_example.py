"""Tests for examples/ros2_node.py: its loop without ROS, on a policy here and on one behind a server."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_servers import SPEC, LinearPlanner, served

from nsde_policy.errors import RemoteLateError
from nsde_policy.planner import Plan
from nsde_policy.policy import NSDEPolicy
from nsde_policy.remote.client import RemotePolicy

PATH = Path(__file__).parents[1] / "examples" / "ros2_node.py"
LOW, HIGH = np.array(SPEC.low)[3:], np.array(SPEC.high)[3:]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ros2_node", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROS2_NODE = example()


def message(*numbers: float) -> SimpleNamespace:
    return SimpleNamespace(data=list(numbers))


GOOD = message(0.1, 0.2, 0.3)


def loop_on(planner: Any, **options: Any) -> Any:
    return ROS2_NODE.PolicyLoop(planner, **{"max_age_s": 0.2, "seed": 1, **options})


def test_it_is_read_without_ros():
    assert "rclpy" not in sys.modules


def test_each_period_gets_the_next_action_of_a_plan_inside_the_demonstrated_ranges():
    planner = LinearPlanner()
    loop, actions = loop_on(planner), []
    for k in range(4):
        loop.observed(GOOD, 0.1 * k)
        actions.append(loop.step(0.1 * k + 0.01))
    memory = SPEC.memory()
    memory.see([0.1, 0.2, 0.3])
    plan = LinearPlanner().plan_from(memory.states(), steps=4, seed=planner.seeds[0]).actions
    assert np.array_equal(actions, np.clip(plan, LOW, HIGH))
    assert len(planner.seeds) == 1
    assert loop.holds.total() == 0


def test_before_anything_was_observed_nothing_is_sent():
    loop = loop_on(LinearPlanner())
    assert loop.step(0.0) is None
    assert dict(loop.holds) == {"no observation yet": 1}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (message(0.1, 0.2), "observation has shape (2,), expected (3,)"),
        (message(0.1, 0.2, float("nan")), "observation is not finite"),
        (message(0.1, float("-inf"), 0.0), "observation is not finite"),
        (message(0.1, 1e300, 0.0), "observation is not finite"),
        (SimpleNamespace(data="abc"), "observation is no list of numbers"),
        (SimpleNamespace(data=None), "observation has shape (), expected (3,)"),
    ],
)
def test_an_observation_that_cannot_be_right_holds_the_last_command(bad: Any, reason: str):
    planner = LinearPlanner()
    loop = loop_on(planner)
    loop.observed(GOOD, 0.0)
    first = loop.step(0.0)
    loop.observed(bad, 0.1)
    assert np.array_equal(loop.step(0.1), first)
    assert dict(loop.holds) == {reason: 1}
    loop.observed(GOOD, 0.2)
    loop.step(0.2)
    assert len(planner.seeds) == 2, "it plans afresh, and does not go on with a plan from before the fault"


@pytest.mark.parametrize(
    ("now", "reason"), [(0.21, "observation is too old"), (-1.0, "the clock went backwards")]
)
def test_an_observation_from_another_time_holds_the_last_command(now: float, reason: str):
    loop = loop_on(LinearPlanner())
    loop.observed(GOOD, 0.0)
    first = loop.step(0.0)
    assert np.array_equal(loop.step(now), first)
    assert dict(loop.holds) == {reason: 1}


@pytest.mark.parametrize(
    "fault",
    [
        RemoteLateError("late"),
        ZeroDivisionError("bug"),
        Plan(np.full((4, 2), np.nan)),
        Plan(np.zeros((1, 2))),
    ],
    ids=["late", "bug", "nan", "short"],
)
def test_a_policy_that_fails_holds_the_last_command_and_is_asked_again(fault: Any):
    faults: list[Any] = [None, fault, None]

    def before(seed: int) -> Any:
        now = faults.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    loop = loop_on(LinearPlanner(before))
    sent = []
    for k in range(6):
        loop.observed(GOOD, 0.1 * k)
        sent.append(loop.step(0.1 * k))
    assert np.array_equal(sent[4], sent[3])
    assert loop.holds.total() == 1
    assert faults == []


events = st.one_of(
    st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    st.lists(st.floats(), max_size=4),
    st.just("tick"),
    st.just("long tick"),
    st.just("fail"),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=40))
def test_whatever_happens_commands_are_finite_and_inside_the_ranges_and_held_ones_are_the_last(happenings):
    failing = False

    def before(seed: int) -> None:
        if failing:
            raise RuntimeError("broken")

    loop, now, last = loop_on(LinearPlanner(before)), 0.0, None
    for event in happenings:
        if event == "fail":
            failing = not failing
        elif isinstance(event, list):
            loop.observed(message(*event), now)
        else:
            now += 0.1 if event == "tick" else 1.0
            held = loop.holds.total()
            action = loop.step(now)
            if loop.holds.total() > held:
                assert action is last
            else:
                assert np.isfinite(action).all()
                assert ((action >= LOW) & (action <= HIGH)).all()
            last = action


def test_the_loop_over_a_server_sends_what_the_loop_on_the_policy_itself_sends():
    policy = NSDEPolicy.from_pretrained()
    with served(policy) as house, RemotePolicy.connect(house.url, deadline_s=5, timeout_s=10) as remote:
        here, there = loop_on(policy), loop_on(remote)
        for k in range(10):
            for loop in (here, there):
                loop.observed(message(235.0 + k, 124.0, 299.6, 145.2, 5.378), 0.1 * k)
            assert np.array_equal(here.step(0.1 * k), there.step(0.1 * k))
        assert here.holds.total() == there.holds.total() == 0


class Topics:
    """Stands in for rclpy, which pip cannot install: keeps what the node asks for, and calls it back."""

    def __init__(self) -> None:
        self.published: list[tuple[str, list[float]]] = []
        self.listen: Any = None
        self.tick: Any = None
        self.period = 0.0
        self.warnings: list[str] = []

    def modules(self) -> dict[str, Any]:
        node = SimpleNamespace(
            create_publisher=lambda kind, topic, depth: SimpleNamespace(
                publish=lambda m: self.published.append((topic, m.data))
            ),
            create_subscription=lambda kind, topic, callback, depth: setattr(self, "listen", callback),
            create_timer=lambda period, callback: (
                setattr(self, "tick", callback),
                setattr(self, "period", period),
            ),
            get_logger=lambda: SimpleNamespace(warning=self.warnings.append),
            destroy_node=lambda: None,
        )
        rclpy = SimpleNamespace(
            init=lambda: None, create_node=lambda name: node, spin=self.spin, try_shutdown=lambda: None
        )
        messages = SimpleNamespace(Float64MultiArray=lambda data: SimpleNamespace(data=data))
        return {"rclpy": rclpy, "std_msgs": SimpleNamespace(msg=messages), "std_msgs.msg": messages}

    def spin(self, node: Any) -> None:
        self.tick()
        for numbers in ([235.0, 124.0, 299.6, 145.2, 5.378], [1.0]):
            self.listen(SimpleNamespace(data=numbers))
            self.tick()
        raise KeyboardInterrupt


def test_the_node_publishes_actions_for_observations_and_warns_when_it_holds(monkeypatch: pytest.MonkeyPatch):
    topics = Topics()
    for name, module in topics.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    assert ROS2_NODE.main(["--rate", "20", "--max-age", "30", "--ros-args", "-r", "__ns:=/arm"]) == 0
    assert topics.period == 0.05
    (topic, action), (_, held) = topics.published
    assert topic == "action"
    assert len(action) == 2
    assert held == action
    assert len(topics.warnings) == 2


@pytest.mark.skipif(importlib.util.find_spec("rclpy") is not None, reason="ROS 2 is here")
def test_without_ros_it_says_so_in_one_line():
    done = subprocess.run(
        [sys.executable, str(PATH)],
        cwd=PATH.parents[1],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "."},
    )
    assert done.returncode == 2
    assert done.stderr == "ros2_node: No module named 'rclpy'\n"
