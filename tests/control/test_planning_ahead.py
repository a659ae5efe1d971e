"""Tests for control/planning.py: plans made in a worker thread."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import FaultKind
from tests.helpers.numpy_planner import CALIBRATION, FailingWalker, Sim, Walker
from tests.helpers.sessions import OBS, PERIOD, make_session, run_session


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("predicts", [True, False])
def test_there_is_always_a_plan_if_planning_takes_fewer_periods_than_a_plan_lasts(delay, predicts):
    sim = Sim()
    session = make_session(sim, Walker(predicts=predicts), delay_s=delay * PERIOD)
    run_session(session, sim, 60)
    report = session.report()
    assert report.faults == {}
    assert report.held == 0
    assert report.plans >= 8


def test_a_worker_that_is_too_slow_is_reported_and_the_command_holds():
    sim = Sim()
    session = make_session(sim, delay_s=1.5)
    run_session(session, sim, 60, follow=False)
    assert session.report().faults["late_plan"] >= 1
    assert session.report().held > 0


def test_plans_are_made_in_a_thread_that_ends_with_the_session():
    threads = []

    class RecordingWalker(Walker):
        def plan_from(self, states, *, steps, seed):
            threads.append(threading.current_thread())
            return super().plan_from(states, steps=steps, seed=seed)

    config = SessionConfig(plan_ahead=True, deadline_s=10)
    with Session(RecordingWalker(), config, calibration=CALIBRATION) as session:
        assert np.isfinite(session.step(OBS)).all()
        assert session.last.source == "plan"
    assert threads[0] is not threading.main_thread()
    threads[0].join(timeout=10)
    assert not threads[0].is_alive()


def test_a_worker_that_never_answers_is_reported_once_per_episode():
    sim = Sim()
    session = make_session(sim, delay_s=1e9)
    commands = run_session(session, sim, 30, follow=False)
    assert session.report().faults == {"late_plan": 1}
    assert (commands == commands[0]).all()
    session.reset()
    run_session(session, sim, 30, follow=False)
    assert session.report().faults == {"late_plan": 2}


@pytest.mark.parametrize("ends", ["reset", "close"])
@pytest.mark.parametrize(("trouble", "kind"), [("raise", "planner_error"), ("nan", "non_finite_plan")])
def test_a_fault_of_a_plan_that_is_no_longer_needed_is_counted_without_a_reaction(ends, trouble, kind):
    sim = Sim()
    planner = FailingWalker(sim)
    session = make_session(sim, planner, delay_s=PERIOD)
    planner.trouble = trouble
    session.step(OBS, sim.now)
    sim.now += PERIOD
    if ends == "close":
        session.close()
    else:
        session.reset()
        session.step(OBS, sim.now)
    assert session.report().faults == {kind: 1}
    assert session.last.faults == ()


class TimingOutWorker:
    """Worker whose second job fails with a `TimeoutError` of its own."""

    def __init__(self) -> None:
        self.jobs = 0

    def submit(self, function):
        self.jobs += 1
        future = Future()
        if self.jobs == 2:
            future.set_exception(TimeoutError("no answer from the graphics card"))
        else:
            future.set_result(function())
        return future

    def close(self) -> None:
        pass


def test_a_job_that_timed_out_is_a_fault_and_the_next_one_is_planned():
    sim, worker = Sim(), TimingOutWorker()
    config = SessionConfig(rate_hz=10.0, plan_ahead=True)
    session = Session(Walker(), config, calibration=CALIBRATION, clock=sim.clock, worker=worker)
    sources, kinds = [], []
    for _ in range(30):
        session.step([50.0, 40.0, 1.0])
        assert session.last is not None
        sources.append(session.last.source)
        kinds += [fault.kind for fault in session.last.faults]
        sim.now += 0.1
    assert worker.jobs > 3
    assert kinds.count(FaultKind.PLANNER_ERROR) == 1
    assert sources[-10:] == ["plan"] * 10
