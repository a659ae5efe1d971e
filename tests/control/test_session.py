"""Tests for control/session.py: closing, garbage collection, and sessions with the shipped policy."""

import gc
from itertools import pairwise

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import PolicyInputError, SessionStoppedError
from nsde_policy.inference.policy import Policy
from tests.helpers.numpy_planner import CALIBRATION, Sim, Walker
from tests.helpers.sessions import OBS, PERIOD, make_session, run_session

START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])


def open_session(**settings):
    return Session(Walker(), SessionConfig(**settings), calibration=CALIBRATION)


def test_objects_are_frozen_while_a_session_is_open():
    assert gc.get_freeze_count() == 0
    with open_session():
        assert gc.get_freeze_count() > 1000
        with open_session() as second:
            second.close()  # the end of the block closes it again
        assert gc.get_freeze_count() > 1000, "the first session is still open"
    assert gc.get_freeze_count() == 0
    with open_session(freeze_gc=False):
        assert gc.get_freeze_count() == 0


def test_objects_that_the_program_froze_stay_frozen():
    gc.freeze()
    try:
        with open_session():
            pass
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("ahead", [False, True])
def test_a_closed_session_takes_no_step_but_its_plan_still_has_commands(ahead):
    sim = Sim()
    with make_session(sim, delay_s=0.0 if ahead else None, rate_hz=50) as session:
        run_session(session, sim, 8, rate=50)
    assert np.isfinite(session.action_at(sim.now + 0.004)).all()
    assert session.last.source == "plan"
    with pytest.raises(SessionStoppedError, match="the session is closed; open a new one"):
        session.step(OBS, sim.now)
    session.reset()
    with pytest.raises(SessionStoppedError):
        session.step(OBS, sim.now)


def test_the_first_plan_continues_the_initial_command():
    sim = Sim()
    session = make_session(sim, initial_command=np.array([20.0, 30.0]))
    first = session.step(OBS, sim.now)
    assert session._scheduler.current.knots[0].tolist() == [20.0, 30.0]
    assert (np.abs(first - [20.0, 30.0]) <= CALIBRATION.step).all()


def test_a_reset_keeps_the_command_in_force():
    sim = Sim()
    session = make_session(sim, on_fault="stop", rate_hz=50)
    before = run_session(session, sim, 20, rate=50)[-1]
    far = np.array([95.0, 95.0, 1.0])
    for gap in (0.0, 0.004, 0.02, 60.0):  # seconds between the last command, the reset and the next command
        session.reset()
        sim.now += gap
        command = session.step(far, sim.now)
        assert (np.abs(command - before) <= session.resolved.limits.speed * min(gap, 0.02) + 1e-9).all()
        assert (np.abs(session._scheduler.current.knots[0] - before) < 1e-4).all()
        before = command
    sim.now += 0.02
    before = session.step(np.full(3, np.nan), sim.now)
    while not session._limiter.at_rest:
        sim.now += 0.02
        before = session.step(far, sim.now)
    session.reset()
    sim.now += 0.02
    limits = session.resolved.limits
    assert (np.abs(session.step(far, sim.now) - before) <= limits.acceleration * 0.02**2 + 1e-9).all()


@pytest.mark.parametrize("position", [[90.0, 15.0], np.array([90, 15]), [990.0, -5.0]])
def test_a_reset_to_a_position_restarts_there_at_rest(position):
    sim = Sim()
    session = make_session(sim, rate_hz=50)
    run_session(session, sim, 20, rate=50)
    session.reset(position)
    sim.now += 0.02
    limits = session.resolved.limits
    start, command = np.clip(position, limits.low, limits.high), session.step(OBS, sim.now)
    assert (np.abs(command - start) <= limits.acceleration * 0.02**2 + 1e-9).all()


@pytest.mark.parametrize("position", [[1.0], "here", [np.nan, 0.0], [10**400, 0], [[1.0, 2.0]]])
def test_a_reset_to_an_invalid_position_raises_and_changes_nothing(position):
    sim = Sim()
    session = make_session(sim)
    before = run_session(session, sim, 3)[-1]
    with pytest.raises(PolicyInputError, match="position must"):
        session.reset(position)
    assert session.last.source == "plan"
    assert session._limiter.command.tolist() == before.tolist()


def test_without_calibration_there_is_no_out_of_distribution_score():
    session = make_session(Sim())
    session.step(OBS)
    assert session.last.ood is None
    assert not session.last.is_ood


@pytest.fixture(scope="module")
def policy():
    return Policy.from_pretrained()


def test_the_shipped_policy_has_a_rate_and_its_uncertainty_grows_along_a_plan(policy):
    assert policy.session(rate_hz=50, deadline_s=0.05, limits="from_demos").resolved.policy_hz == 10
    sim = Sim()
    session = Session(policy, SessionConfig(), calibration=policy.calibration, clock=sim.clock)
    sigmas = []
    for _ in range(4):
        session.step(START, sim.now)
        sigmas.append(session.last.sigma)
        sim.now += PERIOD
    assert all((later > sooner).all() for sooner, later in pairwise(sigmas))
    assert not session.last.is_ood


def test_a_state_unlike_the_demonstrations_is_out_of_distribution(policy):
    config = SessionConfig(fault_when_ood=True)
    session = Session(policy, config, calibration=policy.calibration, clock=Sim().clock)
    session.step([510.0, 20.0, 30.0, 480.0, 1.0])
    assert session.last.is_ood
    assert session.report().faults == {"out_of_distribution": 1}


@pytest.mark.parametrize(
    ("obs", "hint"),
    [
        (START * [1, 1, 1, 1, 180 / np.pi], "degrees"),
        (START * [1e-3, 1e-3, 1e-3, 1e-3, 1], "unit"),
        (START * [1e3, 1e3, 1e3, 1e3, 1], "unit"),
        (START[[4, 0, 1, 2, 3]], "order"),
    ],
)
def test_wrong_units_and_orders_raise_in_a_policy_and_hold_in_a_session(policy, obs, hint):
    policy.reset()
    with pytest.raises(PolicyInputError, match=hint):
        policy.select_action(obs)
    with pytest.raises(PolicyInputError, match=hint):
        policy.predict_action_chunk(obs)
    sim = Sim()
    session = Session(policy, SessionConfig(), calibration=policy.calibration, clock=sim.clock)
    session.step(START, sim.now)
    sim.now += PERIOD
    session.step(obs, sim.now)
    assert session.last.source == "hold"
    assert session.report().faults == {"implausible_observation": 1}
