"""Tests for examples/ros2_node.py: its loop, which needs no ROS."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ros2_node

from nsde_policy.control import Session, SessionConfig
from tests.helpers.numpy_planner import Sim
from tests.helpers.policy_servers import SPEC, LinearPlanner

PATH = Path(ros2_node.__file__)
LOW, HIGH = np.array(SPEC.low)[3:], np.array(SPEC.high)[3:]


def message(*numbers: float) -> SimpleNamespace:
    return SimpleNamespace(data=list(numbers))


GOOD = message(0.1, 0.2, 0.3)


def make_loop(planner: Any, sim: Sim) -> Any:
    config = SessionConfig(rate_hz=10, policy_hz=10, seed=1)
    return ros2_node.PolicyLoop(Session(planner, config, clock=sim.clock))


def run(loop: Any, sim: Sim, messages: list[Any]) -> list[np.ndarray | None]:
    """Run one control period per message; None stands for a missing message."""
    sent = []
    for each in messages:
        if each is not None:
            loop.receive(each, sim.now)
        sent.append(loop.step())
        sim.now += 0.1
    return sent


def test_each_period_gets_a_command_within_the_limits_once_there_was_an_observation():
    assert "rclpy" not in sys.modules
    sim = Sim()
    loop = make_loop(LinearPlanner(), sim)
    assert run(loop, sim, [None]) == [None]
    assert "no command before the first valid observation" in loop.problem
    sent = np.array(run(loop, sim, [GOOD] * 8))
    assert loop.problem == ""
    assert len(np.unique(sent, axis=0)) == 8
    assert ((sent >= LOW - 0.2) & (sent <= HIGH + 0.2)).all()


def test_an_invalid_observation_is_reported_and_the_loop_plans_again():
    planner, sim = LinearPlanner(), Sim()
    loop = make_loop(planner, sim)
    run(loop, sim, [GOOD, GOOD])
    (held,) = run(loop, sim, [message(0.1, 0.2, float("nan"))])
    assert "non_finite_observation" in loop.problem
    assert np.isfinite(held).all()
    before = len(planner.seeds)
    run(loop, sim, [GOOD])
    assert loop.problem == ""
    assert len(planner.seeds) == before + 1, "the plan from before the fault is not used"


@pytest.mark.skipif(importlib.util.find_spec("rclpy") is not None, reason="ROS 2 is installed")
def test_without_ros_the_node_prints_one_line():
    done = subprocess.run(
        [sys.executable, str(PATH)],
        cwd=PATH.parents[1],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": "."},
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ros2_node: rclpy cannot be imported; it is part of ROS 2")
    assert "source /opt/ros" in line
