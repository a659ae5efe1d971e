"""Tests for control/faults.py: hold, stop and callbacks."""

import re
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from nsde_policy.control.faults import FaultKind
from nsde_policy.errors import PolicyInputError, SessionStoppedError
from tests.helpers.numpy_planner import CALIBRATION, Sim
from tests.helpers.sessions import OBS, PERIOD, make_session, run_session


def test_hold_brakes_and_then_continues():
    sim = Sim()
    session = make_session(sim, rate_hz=50)
    run_session(session, sim, 20, rate=50)
    speed = np.abs(session._limiter.velocity).max()
    sim.now += 0.02
    session.step(np.full(3, np.nan), sim.now)
    assert session.last.source == "hold"
    assert 0 < np.abs(session._limiter.velocity).max() < speed
    for _ in range(10):
        sim.now += 0.02
        session.step(OBS, sim.now)
    assert session.last.source == "plan"
    assert session.report().faults == {"non_finite_observation": 1}


def test_stop_brakes_and_then_raises_until_reset():
    sim = Sim()
    session = make_session(sim, on_fault="stop", rate_hz=50)
    run_session(session, sim, 20, rate=50)
    sim.now += 0.02
    session.step(np.full(3, np.inf), sim.now)
    held = 1
    while not session._limiter.at_rest:
        sim.now += 0.02
        session.step(OBS, sim.now)
        held += 1
    assert held > 1
    with pytest.raises(SessionStoppedError, match="non_finite_observation"):
        session.step(OBS, sim.now)
    with pytest.raises(SessionStoppedError, match=r"call reset\(\)"):
        session.action_at(sim.now)
    session.reset()
    session.step(OBS, sim.now)
    assert session.last.source == "plan"


def test_a_mapping_sets_reactions_by_the_name_of_a_kind():
    sim = Sim()
    session = make_session(sim, on_fault=MappingProxyType({"wrong_observation": "stop"}))
    run_session(session, sim, 3)
    for obs, stopped in ((np.full(3, np.nan), False), ("nothing", True)):
        sim.now += PERIOD
        session.step(obs, sim.now)
        assert (session._stopped is not None) == stopped


def test_the_command_of_a_callback_is_limited():
    sim, kinds = Sim(), []

    def answer(fault):
        kinds.append(fault.kind)
        return np.array([1e9, 1e9])

    session = make_session(sim, on_fault={FaultKind.WRONG_OBSERVATION: answer})
    run_session(session, sim, 3)
    sim.now += PERIOD
    before = session.last.action
    command = session.step("nothing", sim.now)
    assert kinds == [FaultKind.WRONG_OBSERVATION]
    assert (np.abs(command - before) <= CALIBRATION.step).all()
    assert session.last.source == "callback"


@pytest.mark.parametrize("reaction", ["hold", "stop"])
def test_a_callback_that_raises_holds_and_both_faults_are_reported(reaction):
    sim = Sim()

    def fail(_):
        raise ZeroDivisionError("a bug in\na callback")

    on_fault = {FaultKind.WRONG_OBSERVATION: fail, FaultKind.CALLBACK_ERROR: reaction}
    session = make_session(sim, on_fault=on_fault)
    run_session(session, sim, 3)
    sim.now += PERIOD
    session.step("nothing", sim.now)
    assert session.last.source == "hold"
    assert session.last.faults[-1].detail == "ZeroDivisionError: a bug in a callback"
    assert session.report().faults == {"wrong_observation": 1, "callback_error": 1}
    assert (session._stopped is not None) == (reaction == "stop")


def test_there_is_no_command_before_the_first_valid_observation():
    sim = Sim()
    session = make_session(sim)
    with pytest.raises(PolicyInputError, match="before the first valid observation: non_finite"):
        session.step(np.full(3, np.nan), sim.now)
    with pytest.raises(PolicyInputError, match="nothing was observed"):
        session.action_at(sim.now)
    assert session.report().faults == {"non_finite_observation": 1}
    sim.now += PERIOD
    assert np.isfinite(session.step(OBS, sim.now)).all()


def test_the_documented_table_of_faults_is_complete():
    text = (Path(__file__).parents[2] / "docs/control_loop.md").read_text()
    rows = text.partition("| kind | when |")[2].partition("\n\n")[0].splitlines()[2:]
    kinds = [kind for row in rows for kind in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(kinds) == sorted(FaultKind)
