"""Tests for control/interpolation.py: commands between those of a plan."""

import numpy as np
import pytest

from nsde_policy.control.interpolation import PlanJob, TimedPlan
from nsde_policy.planner.interface import Plan
from tests.helpers.numpy_planner import SPEC, Sim, Walker
from tests.helpers.sessions import NO_LIMITS, OBS, PERIOD, make_session, run_session


def make_plan(plan, start=0, use=3):
    job = PlanJob(0, SPEC.new_history(), start, np.zeros(2), 4, use, predict=None, requested_at=0.0)
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
    plan = make_plan(Plan(states[1:, 3:], states), start=10, use=4)
    recent = np.array([[1.5, 0.0, 2 * np.pi, 1.0, 0.0], [0.0, 0.0, 0.1, 0.0, 0.0]])
    predicted = plan.predict_states(recent, 11, 13, SPEC)
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
