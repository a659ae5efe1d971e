"""Tests for control/session.py: closing, garbage collection, and sessions with the shipped policy."""

import gc
from itertools import pairwise

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import ConfigError, PolicyInputError, SessionStoppedError
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
        assert gc.get_freeze_count() > 1000, "objects that were frozen before stay frozen"
    assert gc.get_freeze_count() == 0
    with open_session(freeze_gc=False):
        assert gc.get_freeze_count() == 0


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


@pytest.mark.parametrize("position", [[1.0], "here", [np.nan, 0.0], [10**400, 0], [[1.0, 2.0]]])
def test_an_invalid_position_raises_and_changes_nothing(position):
    with pytest.raises(ConfigError, match="initial_command must"):
        make_session(Sim(), initial_command=position)
    sim = Sim()
    session = make_session(sim)
    before = run_session(session, sim, 3)[-1]
    with pytest.raises(PolicyInputError, match="position must"):
        session.reset(position)
    assert session.last.source == "plan"
    assert session._limiter.command.tolist() == before.tolist()


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
