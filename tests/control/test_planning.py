"""Tests for control/planning.py and interpolation.py: plans made in a worker, and commands between theirs."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.interpolation import PlanJob, TimedPlan
from nsde_policy.interface.planner import Plan
from tests.helpers.numpy_planner import CALIBRATION, SPEC, FailingWalker, Sim, Walker
from tests.helpers.sessions import NO_LIMITS, OBS, PERIOD, make_session, run_session
from tests.helpers.simulated_time import InlineWorker


def make_plan(plan, start=0, execute=3):
    job = PlanJob(0, SPEC.new_history(), start, np.zeros(2), 4, execute, predict=None, requested_at=0.0)
    return TimedPlan.from_plan(plan, SPEC, job)


def test_at_the_policy_rate_commands_equal_the_plan():
    sim, planner = Sim(), Walker()
    commands = run_session(make_session(sim, planner, limits=NO_LIMITS), sim, 4, follow=False)
    history = SPEC.new_history()
    history.add_observation(OBS)
    seed = int(np.random.SeedSequence([0, 0]).generate_state(1)[0])
    planned = planner.plan_from(history.states(), steps=5, seed=seed)
    assert np.allclose(commands, planned.actions[:4], atol=1e-9)


@pytest.mark.parametrize("rate", [20.0, 50.0, 125.0, 250.0, 1000.0])
def test_at_higher_rates_commands_are_interpolated_and_average_to_the_plan(rate):
    sim = Sim()
    session = make_session(sim, limits=NO_LIMITS, rate_hz=rate, blend=0.0)
    per_period = rate * PERIOD
    commands = run_session(session, sim, int(3 * per_period), rate=rate, follow=False)
    plan = session._scheduler.current
    line = [plan.interpolate((k + 0.5) / per_period - 0.5) for k in range(len(commands))]
    assert np.allclose(commands, line, atol=1e-6)
    second = slice(int(per_period), 2 * int(per_period))
    assert commands[second].mean(axis=0) == pytest.approx(plan.knots[2], abs=2.0)


def test_predicted_states_are_corrected_by_the_prediction_error_and_angles_wrap():
    states = np.zeros((5, 5))
    states[:, 0], states[:, 2], states[:, 3] = range(5), 0.1, [0, 1, 2, 3, 4]
    plan = make_plan(Plan(states[1:, 3:], states), start=10, execute=4)
    recent = np.array([[1.5, 0.0, 2 * np.pi, 1.0, 0.0], [0.0, 0.0, 0.1, 0.0, 0.0]])
    predicted = plan.predict_states(recent, from_period=11, to_period=13, spec=SPEC)
    assert predicted[0].tolist() == pytest.approx([3.5, 0, 0.0, 3, 0], abs=1e-6)
    assert predicted[1].tolist() == pytest.approx([2.5, 0, 0.0, 2, 0], abs=1e-6)
    assert plan.predict_action(13, SPEC).tolist() == [3, 0]
    assert [plan.predicts(11, then) for then in (13, 14, 15)] == [True, True, False]
    assert not plan.predicts(9, 11)


def test_std_accumulates_along_the_plan():
    plan = make_plan(Plan(np.zeros((3, 2)), std=np.full((3, 2), 2.0)))
    default = np.ones(2)
    assert plan.accumulated_std(0, default) == pytest.approx(2.0)
    assert plan.accumulated_std(2, default) == pytest.approx(2.0 * np.sqrt(3))
    assert make_plan(Plan(np.zeros((3, 2)))).accumulated_std(1, default) == pytest.approx(np.sqrt(2))


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


def test_plans_are_made_in_a_thread_that_ends_with_the_session():
    threads = []

    class RecordingWalker(Walker):
        def plan_from(self, states, *, steps, seed, candidates=None):
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


def test_a_job_that_timed_out_is_a_fault_and_the_next_one_is_planned():
    class TimingOutWorker(InlineWorker):
        jobs = 0

        def submit(self, function):
            self.jobs += 1
            future = super().submit(function)
            if self.jobs == 2:
                future = Future()
                future.set_exception(TimeoutError("no answer from the graphics card"))
            return future

    sim = Sim()
    session = make_session(sim, worker=TimingOutWorker(), plan_ahead=True)
    run_session(session, sim, 30, follow=False)
    assert session.report().faults == {"planner_error": 1}
    assert session.last.source == "plan"


@pytest.mark.parametrize("candidates", [None, 4])
def test_the_number_of_compared_plans_is_a_setting_that_slow_plans_do_not_change(candidates):
    class SlowWalker(Walker):
        def plan_from(self, states, *, steps, seed, candidates=None):
            asked.append(candidates)
            sim.now += 0.2
            return super().plan_from(states, steps=steps, seed=seed)

    sim, asked = Sim(), []
    session = make_session(sim, SlowWalker(), deadline_s=0.05, candidates=candidates)
    run_session(session, sim, 20)
    assert len(asked) > 3
    assert {*asked} == {candidates}
    assert session.report().missed_deadlines > 0
