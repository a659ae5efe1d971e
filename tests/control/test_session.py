"""Tests of a session without faults: settings, timing, closing, report and log."""

import gc
import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.clock import TimeGrid
from nsde_policy.control.faults import FaultKind
from nsde_policy.errors import ConfigError, PolicyInputError, SessionStoppedError
from nsde_policy.interface.roughness import describe_roughness, measure_roughness
from tests.helpers.numpy_planner import CALIBRATION, SPEC, FailingWalker, Sim, Walker
from tests.helpers.sessions import NO_LIMITS, OBS, PERIOD, make_session, run_session
from tests.helpers.simulated_time import DelayedPlanner


def test_objects_are_frozen_while_a_session_is_open():
    before = gc.get_freeze_count()
    with make_session(Sim()):
        assert gc.get_freeze_count() > 1000 + before
    assert gc.get_freeze_count() == 0
    with make_session(Sim(), freeze_gc=False):
        assert gc.get_freeze_count() == 0


def test_a_closed_session_takes_no_step():
    sim = Sim()
    with make_session(sim) as session:
        session.step(OBS, sim.now)
    for _ in range(2):
        with pytest.raises(SessionStoppedError, match="the session is closed; open a new one"):
            session.step(OBS, sim.now)
        session.reset()


def test_between_two_observations_the_plan_is_followed_without_one():
    sim, commands = Sim(), []
    session = make_session(sim, rate_hz=50, limits=NO_LIMITS)
    for tick in range(20):
        commands.append(session.step(None if tick % 5 else OBS, sim.now))
        sim.now += 0.02
    assert session.report().faults == {}
    assert len({tuple(command) for command in commands}) == 20


@pytest.mark.parametrize("position", [[1.0], "here", [np.nan, 0.0]])
def test_an_invalid_position_raises_and_changes_nothing(position):
    with pytest.raises(PolicyInputError, match="initial_command must"):
        make_session(Sim(), initial_command=position)
    sim = Sim()
    session = make_session(sim)
    before = run_session(session, sim, 3)[-1]
    with pytest.raises(PolicyInputError, match="position must"):
        session.reset(position)
    assert session.last.source == "plan"
    assert session._limiter.command.tolist() == before.tolist()


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


def test_a_loop_over_ticks_has_no_faults_also_after_a_pause_and_a_reset():
    sim, config = Sim(), SessionConfig()
    with Session(Walker(), config, calibration=CALIBRATION, clock=sim.clock, sleep=sim.sleep) as session:
        for _ in range(2):
            for _, time in zip(range(5), session.ticks(), strict=False):
                session.step(OBS, time)
            assert session.report().faults == {}
            sim.now += 60.0
            session.reset()


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
    session = make_session(sim, DelayedPlanner(Walker(), 0.2, sleep=sim.sleep), limits=NO_LIMITS, blend=0.0)
    session.step(OBS, sim.now)
    assert [fault.kind for fault in session.last.faults] == [FaultKind.LATE_PLAN]
    sim.now += PERIOD
    command = session.step(OBS, sim.now)
    assert command == pytest.approx(session._scheduler.current.knots[4], abs=1e-9)
    assert session.report().missed_deadlines == 1


def test_report_and_records_of_commands_agree():
    sim = Sim()
    planner = FailingWalker(sim)
    session, lines = make_session(sim, planner), []
    for trouble in (None, "raise"):
        planner.trouble = trouble
        for _ in range(9):
            session.step(OBS, sim.now)
            lines.append(json.loads(session.last.to_json()))
            sim.now += PERIOD
    report = session.report()
    assert len(lines) == report.commands == 18
    kinds = [fault["kind"] for line in lines for fault in line["faults"]]
    assert kinds == ["planner_error"]
    assert report.faults == {"planner_error": 1}
    assert "planner_error 1" in report.to_text()
    assert report.rate_hz == pytest.approx(10, rel=0.1)


UNFIT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "slower than the policy": (
        {"rate_hz": 5},
        {},
        r"rate_hz is 5, the policy's rate is 10: .* set rate_hz to 10",
    ),
    "changes at a higher rate": (
        {"rate_hz": 50},
        {"delta_columns": (0, 1)},
        r"rate_hz is 50, but actions 0, 1 .* at 10 Hz.* set rate_hz to 10",
    ),
    "unknown rate": ({}, {"rate_hz": 0.0}, "set policy_hz"),
    "a long chunk": ({"chunk": 50}, {}, "chunk is 50, a plan of this policy has at most 8 commands"),
    "no distance": ({"fault_when_ood": True}, {}, "fault_when_ood needs a calibration"),
    "nothing hidden": ({"min_visible": 0.5}, {}, "min_visible is 0.5, but this policy does not report"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_settings_that_do_not_fit_the_policy_raise(name):
    settings, measured, message = UNFIT[name]
    planner, calibration = Walker(replace(SPEC, longest_chunk=8)), replace(CALIBRATION, **measured)
    with pytest.raises(ConfigError, match=message):
        Session(planner, SessionConfig(**settings), calibration=calibration)


def test_a_chunk_may_be_as_long_as_a_plan():
    planner = Walker(replace(SPEC, longest_chunk=8))
    assert make_session(Sim(), planner, chunk=8).resolved.chunk == 8
    assert make_session(Sim(), chunk=50).resolved.chunk == 50


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 10}, "no setting 'rate'; the closest is 'rate_hz' of rate_hz, deadline_s, limits"),
        ({"deadline_s": float("nan")}, "need deadline_s > 0"),
        ({"limits": "none"}, "limits must be 'from_demos' or Limits"),
        ({"on_fault": "panic"}, "on_fault must be 'hold', 'stop' or a callback"),
        ({"on_fault": {"clock_jmp": "stop"}}, "no fault 'clock_jmp'; the closest is 'clock_jump' of non"),
        ({"on_fault": MappingProxyType({"late_plan": "panic"})}, "'stop' or a callback, got 'panic'"),
    ],
)
def test_unknown_and_invalid_settings_raise(settings, message):
    with pytest.raises(ConfigError, match=message):
        SessionConfig(**settings)


def test_report_compares_the_commands_of_policy_periods_with_the_demonstrations():
    sim, calibration = Sim(), replace(CALIBRATION, roughness=0.01)
    session = Session(Walker(), SessionConfig(rate_hz=20), calibration=calibration, clock=sim.clock)
    sent = run_session(session, sim, 41, rate=20)
    expected = measure_roughness([sent[1::2]], SPEC)  # the others are between two actions
    report = session.report()
    assert expected is not None
    assert report.roughness == pytest.approx(expected / 0.01)
    assert describe_roughness(report.roughness) in report.to_text()
    old = make_session(Sim())
    assert old.report().roughness is None
    assert "rough" not in old.report().to_text()
