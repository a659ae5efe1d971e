"""Tests for timing in control/: ticks, time stamps, clock jumps, late plans."""

import numpy as np
import pytest

from nsde_policy.control.clock import TimeGrid
from nsde_policy.control.faults import FaultKind
from tests.helpers.numpy_planner import Sim, Walker
from tests.helpers.sessions import NO_LIMITS, OBS, PERIOD, make_session, run_session
from tests.helpers.simulated_time import DelayedPlanner


def test_ticks_do_not_drift_and_skip_periods_that_have_passed():
    sim = Sim()

    def sleep(seconds):
        sim.now += seconds + 0.0003  # wakes up late every time

    found, busy = [], [0.0, 0.002, 0.0, 0.035, 0.0, 0.0]
    ticks = TimeGrid(rate_hz=100.0, policy_hz=10.0).ticks(sim.clock, sleep)
    for seconds in busy:
        found.append(next(ticks) - 100.0)
        sim.now += seconds
    assert found == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.06, 0.07])


def test_action_at_repeats_the_last_command_for_an_earlier_time():
    sim = Sim()
    session = make_session(sim, rate_hz=50)
    run_session(session, sim, 8, rate=50)
    last = session.action_at(sim.now + 0.005)
    assert np.array_equal(session.action_at(sim.now - 0.05), last)
    assert session.report().faults == {}


def test_action_at_reports_a_clock_jump_for_a_time_far_from_now_and_for_no_time():
    sim = Sim()
    session = make_session(sim, rate_hz=50)
    run_session(session, sim, 8, rate=50)
    for number, time in enumerate((sim.now + 1.1 * PERIOD, "noon", [], float("nan")), start=1):
        assert np.isfinite(session.action_at(time)).all()
        assert session.report().faults == {"clock_jump": number}


@pytest.mark.parametrize(("rate", "longest"), [(10, 0.5), (50, 0.3)])
def test_a_gap_of_three_policy_periods_or_five_control_periods_is_not_a_clock_jump(rate, longest):
    for gap, faults in ((longest - 0.01, 0), (longest + 0.01, 1)):
        sim = Sim()
        session = make_session(sim, rate_hz=rate)
        session.step(OBS, sim.now)
        sim.now += gap
        session.step(OBS, sim.now)
        assert session.report().faults.get("clock_jump", 0) == faults


def test_a_late_plan_is_held_once_and_its_past_commands_are_dropped():
    sim = Sim()

    def sleep(seconds):
        sim.now += seconds

    session = make_session(sim, DelayedPlanner(Walker(), 0.2, sleep=sleep), limits=NO_LIMITS, blend=0.0)
    session.step(OBS, sim.now)
    assert [fault.kind for fault in session.last.faults] == [FaultKind.LATE_PLAN]
    sim.now += PERIOD
    command = session.step(OBS, sim.now)
    assert command == pytest.approx(session._scheduler.current.knots[4], abs=1e-9)
    assert session.report().missed_deadlines == 1
