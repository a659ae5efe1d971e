"""Actions that take two values: a session never sends another one, at any rate, and switches at once."""

from dataclasses import replace

import numpy as np
import pytest

from nsde_policy.interface.planner import Plan, Planner, round_binary
from tests.helpers.numpy_planner import SPEC, Sim
from tests.helpers.sessions import PERIOD, make_session, run_session

BINARY = replace(SPEC, binary=((1, 0.0, 100.0),))


class Gripper(Planner):
    """Planner whose second action is slowly closed by a network that knows no steps: 0, 20, 40, 60 …"""

    spec = BINARY

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        del seed
        place = states[0, 3] + np.arange(1.0, steps + 1)
        return Plan(np.stack([place, 20.0 * np.arange(steps)], axis=1))


def test_actions_are_rounded_to_the_two_values_and_others_are_not():
    planned = np.array([[30.0, 49.9], [31.0, 50.1]])
    assert round_binary(planned, BINARY).tolist() == [[30.0, 0.0], [31.0, 100.0]]
    assert planned.tolist() == [[30.0, 49.9], [31.0, 50.1]]


class SlowGripper(Gripper):
    """Planner that moves its second action by 10 in every period, from where it was told that it is."""

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        del seed
        return Plan(states[0, 3:] + np.arange(1.0, steps + 1)[:, None] * [0.0, 10.0])


def test_a_policy_is_told_what_it_planned_so_that_it_can_change_its_mind_slowly():
    sim = Sim()
    gripper = run_session(make_session(sim, SlowGripper(), chunk=1), sim, 20, follow=False)[:, 1]
    assert set(gripper) == {0.0, 100.0}
    assert gripper[-1] == 100.0


@pytest.mark.parametrize("rate_hz", [10, 40])
def test_a_session_sends_one_of_two_values_and_switches_at_once(rate_hz: float):
    sim = Sim()
    session, ticks = make_session(sim, Gripper(), rate_hz=rate_hz), round(1.2 * rate_hz)
    gripper = run_session(session, sim, ticks, rate=rate_hz, follow=False)[:, 1]
    assert set(gripper) == {0.0, 100.0}
    switches = np.flatnonzero(np.diff(gripper))
    assert len(switches) == 5  # each plan of four periods closes after two and a half; the next one opens
    closed = 0.1 if rate_hz == 10 else 0.15
    np.testing.assert_allclose(np.diff(switches) / rate_hz, [closed, 0.4 - closed] * 2, atol=0.06)


def test_a_fault_keeps_the_gripper_as_it_is():
    sim = Sim()
    session = make_session(sim, Gripper())
    assert run_session(session, sim, 4, follow=False)[-1, 1] == 100.0
    sim.now += PERIOD
    held = session.step(np.full(3, np.nan), sim.now)
    assert held[1] == 100.0
