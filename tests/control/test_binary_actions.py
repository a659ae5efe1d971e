"""Actions that take two values: a session never sends another one, at any rate, and switches at once."""

from dataclasses import replace

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.planner.checks import check_plan
from nsde_policy.planner.interface import Plan
from tests.helpers.numpy_planner import CALIBRATION, SPEC, Sim

BINARY = replace(SPEC, binary=((1, 0.0, 100.0),))
OBS = np.array([50.0, 0.0, 1.0])


class Gripper:
    """Planner whose second action is slowly closed by a network that knows no steps: 0, 20, 40, 60 …"""

    spec = BINARY

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        del seed
        place = states[0, 3] + np.arange(1.0, steps + 1)
        return Plan(np.stack([place, 20.0 * np.arange(steps)], axis=1))


def test_a_plan_is_rounded_to_the_two_values_and_other_actions_are_not():
    states = np.full((5, 5), 49.0)
    plan = check_plan(Plan(np.array([[30.0, 49.9], [31.0, 50.1]] * 2), states), BINARY)
    assert plan.actions.tolist() == [[30.0, 0.0], [31.0, 100.0]] * 2
    assert plan.states is not None
    assert plan.states[1:, 4].tolist() == [0.0] * 4
    assert plan.states[:, 3].tolist() == [49.0] * 5


@pytest.mark.parametrize("rate_hz", [10, 40])
@pytest.mark.parametrize("jerk_limit", [None, 1e4])
def test_a_session_sends_one_of_two_values_and_switches_at_once(rate_hz: float, jerk_limit: float | None):
    sim = Sim()
    config = SessionConfig(rate_hz=rate_hz, jerk_limit=jerk_limit)
    session = Session(Gripper(), config, calibration=CALIBRATION, clock=sim.clock)
    commands = []
    for _ in range(round(1.2 * rate_hz)):
        commands.append(session.step(OBS, sim.now))
        sim.now += 1 / rate_hz
    gripper = np.stack(commands)[:, 1]
    assert set(gripper) == {0.0, 100.0}
    switches = np.flatnonzero(np.diff(gripper))
    assert len(switches) == 5  # each plan of four periods closes in its last one; the next one opens
    np.testing.assert_allclose(np.diff(switches) / rate_hz, [0.1, 0.3, 0.1, 0.3], atol=0.06)


def test_a_fault_keeps_the_gripper_as_it_is():
    sim = Sim()
    session = Session(Gripper(), SessionConfig(), calibration=CALIBRATION, clock=sim.clock)
    for _ in range(4):
        command = session.step(OBS, sim.now)
        sim.now += 0.1
    assert command[1] == 100.0
    held = session.step(np.full(3, np.nan), sim.now)
    assert held[1] == 100.0
