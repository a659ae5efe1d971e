"""Tests for session.py and its parts, in simulated time; the last ones with the policy that is shipped."""

import dataclasses
import gc
import json
import re
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsde_policy.control import Session
from nsde_policy.control.clock import Grid, ticks
from nsde_policy.control.config import SessionConfig
from nsde_policy.control.faults import FaultKind
from nsde_policy.control.limits import Limiter, Limits
from nsde_policy.control.simulation import DelayedPlanner, SimulatedWorker
from nsde_policy.control.timed_plan import TimedPlan, foreseen
from nsde_policy.errors import (
    ConfigError,
    PlanError,
    PolicyInputError,
    SessionClosedError,
    SessionStoppedError,
)
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Plan
from tests.helpers.numpy_planner import CALIBRATION, SPEC, FailingWalker, Sim, Walker

OBS = np.array([50.0, 40.0, 1.0])
PERIOD = 0.1
FREE = Limits(np.full(2, -1e6), np.full(2, 1e6), np.full(2, 1e9), np.full(2, 1e12))


def session(sim, planner=None, *, delay_s=None, **settings):
    planner = planner or Walker()
    worker = None
    if delay_s is not None:
        settings["plan_ahead"] = True
        worker = SimulatedWorker(planner, sim.clock, delay_s=delay_s)
    config = SessionConfig(**settings)
    return Session(planner, config, calibration=CALIBRATION, clock=sim.clock, worker=worker)


def drive(control, sim, n, *, rate=10.0, follow=True):
    """Commands of n control periods; the robot is where it was told to be one policy period before."""
    origin, obs, commands = sim.now, OBS.copy(), []
    for tick in range(n):
        sim.now = max(sim.now, origin + tick / rate)
        commands.append(control.step(obs, sim.now))
        if follow:
            obs[:2] = commands[max(0, len(commands) - 1 - int(rate * PERIOD) + 1)]
    return np.array(commands)


# --- Plans in time ---


def test_at_the_policys_own_rate_the_commands_are_the_planned_ones():
    sim, planner = Sim(), Walker()
    commands = drive(session(sim, planner, limits=FREE), sim, 4, follow=False)
    memory = SPEC.new_history()
    memory.add_observation(OBS)
    seed = int(np.random.SeedSequence([0, 0]).generate_state(1)[0])
    planned = planner.plan_from(memory.states(), steps=5, seed=seed)
    assert np.allclose(commands, planned.actions[:4], atol=1e-9)


@pytest.mark.parametrize("rate", [20.0, 50.0, 125.0, 250.0, 1000.0])
def test_at_a_higher_rate_commands_lie_between_the_planned_ones_and_average_to_them(rate):
    sim = Sim()
    control = session(sim, limits=FREE, rate_hz=rate, blend=0.0)
    per = rate * PERIOD
    commands = drive(control, sim, int(3 * per), rate=rate, follow=False)
    plan = control._planning.current
    line = [plan.command((k + 0.5) / per - 0.5) for k in range(len(commands))]
    assert np.allclose(commands, line, atol=1e-6)
    middle = int(per)  # the second period: the straight lines on either side of its command
    assert commands[middle : 2 * middle].mean(axis=0) == pytest.approx(plan.knots[2], abs=2.0)


@pytest.mark.parametrize("bad", [np.full((3, 2), np.nan), np.zeros((3, 1)), np.zeros((0, 2)), np.zeros(2)])
def test_a_plan_that_cannot_be_sent_is_refused(bad):
    with pytest.raises(PlanError):
        TimedPlan.of(Plan(bad), SPEC, index=0, start=0, in_force=np.zeros(2), use=3)


def test_the_foreseen_state_is_moved_by_what_the_plan_was_wrong_by_and_angles_wrap():
    way = np.zeros((5, 5))
    way[:, 0], way[:, 2], way[:, 3] = range(5), 0.1, [0, 1, 2, 3, 4]
    plan = TimedPlan.of(Plan(way[1:, 3:], way), SPEC, index=0, start=10, in_force=np.zeros(2), use=4)
    seen = np.array([[1.5, 0.0, 2 * np.pi, 1.0, 0.0], [0.0, 0.0, 0.1, 0.0, 0.0]])
    states = foreseen(plan, seen, 11, 13, SPEC)
    assert states[0].tolist() == pytest.approx([3.5, 0, 0.0, 3, 0], abs=1e-6)
    assert states[1].tolist() == pytest.approx([2.5, 0, 0.0, 2, 0], abs=1e-6)
    assert foreseen(plan, seen, 11, 15, SPEC) is None


# --- Limits ---


@settings(max_examples=200, deadline=None)
@given(
    targets=st.lists(st.floats(-200, 200), min_size=2, max_size=40),
    dts=st.lists(st.floats(1e-4, 0.1), min_size=1, max_size=5),
    start=st.floats(-50, 150),
)
def test_a_limiter_keeps_every_limit_whatever_is_asked_for(targets, dts, start):
    limits = Limits(np.zeros(1), np.full(1, 100.0), np.full(1, 80.0), np.full(1, 500.0))
    limiter = Limiter(limits, np.array([start]))
    for k, target in enumerate(targets):
        dt, before, velocity = dts[k % len(dts)], limiter.command, limiter.velocity
        command = limiter.hold(dt) if k % 7 == 6 else limiter.follow(np.array([target]), np.zeros(1), dt)
        assert 0 <= command[0] <= 100
        assert abs(command[0] - before[0]) <= 80 * dt + 1e-9
        assert abs((command[0] - before[0]) / dt - velocity[0]) <= 500 * dt + 1e-6


def test_a_limiter_reaches_a_resting_target_without_passing_it_and_then_follows_a_moving_one():
    limits = Limits(np.zeros(1), np.full(1, 100.0), np.full(1, 80.0), np.full(1, 500.0))
    limiter, dt = Limiter(limits, np.zeros(1)), 0.004
    way = [limiter.follow(np.array([30.0]), np.zeros(1), dt)[0] for _ in range(400)]
    assert max(way) <= 30 + 1e-9
    assert way[-1] == pytest.approx(30, abs=1e-6)
    slope = np.array([20.0])
    moving = [30 + 20 * dt * k for k in range(1, 300)]
    followed = [limiter.follow(np.array([m]), slope, dt)[0] for m in moving]
    assert followed[-50:] == pytest.approx(moving[-50:], abs=1e-9)


def test_limits_that_cannot_be_kept_are_refused():
    with pytest.raises(ConfigError, match="low < high"):
        Limits(np.ones(2), np.zeros(2), np.ones(2), np.ones(2))
    with pytest.raises(ConfigError, match="speed > 0"):
        Limits(np.zeros(2), np.ones(2), np.zeros(2), np.ones(2))


# --- Time ---


def test_ticks_do_not_drift_and_leave_out_what_has_passed():
    sim = Sim()

    def sleep(seconds):
        sim.now += seconds + 0.0003  # a machine that always wakes a little late

    found, busy = [], [0.0, 0.002, 0.0, 0.035, 0.0, 0.0]
    waiting = ticks(Grid(rate_hz=100.0, policy_hz=10.0), sim.clock, sleep)
    for extra in busy:
        found.append(next(waiting) - 100.0)
        sim.now += extra
    assert found == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.06, 0.07])


def test_a_session_slower_than_its_policy_or_without_a_rate_is_refused():
    with pytest.raises(ConfigError, match="no slower"):
        session(Sim(), rate_hz=5)
    with pytest.raises(ConfigError, match="policy_hz"):
        Session(Walker(), SessionConfig())


def test_more_commands_than_a_plan_holds_are_refused():
    eight = Walker(dataclasses.replace(SPEC, longest_chunk=8))
    with pytest.raises(ConfigError, match="holds at most 8 commands, got chunk=50"):
        session(Sim(), eight, chunk=50)
    assert session(Sim(), eight, chunk=8)._settled.chunk == 8
    assert session(Sim(), chunk=50)._settled.chunk == 50


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rate": 10}, "no setting 'rate'; the closest is 'rate_hz' of rate_hz, deadline_s, limits"),
        ({"plan_ahed": True}, "the closest is 'plan_ahead'"),
        ({"rate_hz": "fast"}, "need rate_hz > 0, got 'fast'"),
        ({"rate_hz": None}, "need rate_hz > 0"),
        ({"deadline_s": float("nan")}, "need deadline_s > 0"),
        ({"chunk": 2.5}, "need a whole chunk >= 1, got 2.5"),
        ({"seed": "a"}, "need a whole seed >= 0, got 'a'"),
        ({"limits": "none"}, "limits are 'from_demos' or Limits"),
        ({"on_fault": "panic"}, "on_fault is 'hold', 'stop' or a callback"),
        ({"log": 3}, "log is the path of a file, got 3"),
        ({"log": ["a"]}, "log is the path of a file"),
        (
            {"on_fault": {"clock_jmp": "stop"}},
            "no fault 'clock_jmp'; the closest is 'clock_jump' of non",
        ),
        ({"on_fault": {3: "stop"}}, "no fault 3; the closest"),
        ({"on_fault": MappingProxyType({"late_plan": "panic"})}, "'stop' or a callback, got 'panic'"),
    ],
)
def test_settings_that_there_are_none_of_or_that_cannot_work_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        SessionConfig(**settings)


# --- Faults ---


def test_after_a_fault_the_command_brakes_and_then_goes_on():
    sim = Sim()
    control = session(sim, rate_hz=50)
    drive(control, sim, 20, rate=50)
    speed = np.abs(control._limiter.velocity).max()
    sim.now += 0.02
    control.step(np.full(3, np.nan), sim.now)
    assert control.last.source == "hold"
    assert 0 < np.abs(control._limiter.velocity).max() < speed
    for _ in range(10):
        sim.now += 0.02
        control.step(OBS, sim.now)
    assert control.last.source == "plan"
    assert control.report().faults == {"non_finite_observation": 1}


def test_a_stopped_session_brakes_then_refuses_until_it_is_reset():
    sim = Sim()
    control = session(sim, on_fault="stop", rate_hz=50)
    drive(control, sim, 20, rate=50)
    sim.now += 0.02
    control.step(np.full(3, np.inf), sim.now)
    held = 1
    while not control._limiter.at_rest:
        sim.now += 0.02
        control.step(OBS, sim.now)
        held += 1
    assert held > 1
    with pytest.raises(SessionStoppedError, match="non_finite_observation"):
        control.step(OBS, sim.now)
    with pytest.raises(SessionStoppedError):
        control.action_at(sim.now)
    control.reset()
    control.step(OBS, sim.now)
    assert control.last.source == "plan"


def test_any_mapping_gives_kinds_of_faults_their_own_reactions_by_name_too():
    sim = Sim()
    control = session(sim, on_fault=MappingProxyType({"wrong_observation": "stop"}))
    drive(control, sim, 3)
    for obs, stopped in ((np.full(3, np.nan), False), ("nothing", True)):
        sim.now += PERIOD
        control.step(obs, sim.now)
        assert (control._stopped is not None) == stopped


def test_a_callback_hears_the_fault_and_its_command_passes_the_limits():
    sim, heard = Sim(), []

    def answer(fault):
        heard.append(fault.kind)
        return np.array([1e9, 1e9])

    control = session(sim, on_fault={FaultKind.WRONG_OBSERVATION: answer})
    drive(control, sim, 3)
    sim.now += PERIOD
    before = control.last.action
    command = control.step("nothing", sim.now)
    assert heard == [FaultKind.WRONG_OBSERVATION]
    assert (np.abs(command - before) <= CALIBRATION.step).all()
    assert control.last.source == "callback"


@pytest.mark.parametrize("of_callback", ["hold", "stop"])
def test_a_callback_that_raises_holds_and_both_faults_are_in_the_report(of_callback):
    sim = Sim()

    def fail(_):
        raise ZeroDivisionError("a bug in\na callback")

    on_fault = {FaultKind.WRONG_OBSERVATION: fail, FaultKind.CALLBACK_ERROR: of_callback}
    control = session(sim, on_fault=on_fault)
    drive(control, sim, 3)
    sim.now += PERIOD
    control.step("nothing", sim.now)
    assert control.last.source == "hold"
    assert control.last.faults[-1].detail == "ZeroDivisionError: a bug in a callback"
    assert control.report().faults == {"wrong_observation": 1, "callback_error": 1}
    assert (control._stopped is not None) == (of_callback == "stop")


def test_before_the_first_good_observation_no_command_is_sent():
    sim = Sim()
    control = session(sim)
    with pytest.raises(PolicyInputError, match="before the first good observation"):
        control.step(np.full(3, np.nan), sim.now)
    with pytest.raises(PolicyInputError, match="nothing was observed"):
        control.action_at(sim.now)
    assert control.report().faults == {"non_finite_observation": 1}
    sim.now += PERIOD
    assert np.isfinite(control.step(OBS, sim.now)).all()


def test_the_documented_table_of_faults_has_every_kind_and_no_other():
    text = (Path(__file__).parents[2] / "docs/control_loop.md").read_text()
    rows = text.partition("| kind | when |")[2].partition("\n\n")[0].splitlines()[2:]
    kinds = [kind for row in rows for kind in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(kinds) == sorted(FaultKind)


def test_an_instant_before_the_last_command_gets_that_command_again_and_one_far_off_is_a_fault():
    sim = Sim()
    control = session(sim, rate_hz=50)
    drive(control, sim, 8, rate=50)
    last = control.action_at(sim.now + 0.005)
    assert np.array_equal(control.action_at(sim.now - 0.05), last)
    assert control.report().faults == {}
    control.action_at(sim.now + 1.1 * PERIOD)
    assert control.report().faults == {"clock_jump": 1}


@pytest.mark.parametrize(("rate", "longest"), [(10, 0.5), (50, 0.3)])
def test_the_clock_may_move_on_by_three_policy_periods_or_five_control_periods(rate, longest):
    for gap, faults in ((longest - 0.01, 0), (longest + 0.01, 1)):
        sim = Sim()
        control = session(sim, rate_hz=rate)
        control.step(OBS, sim.now)
        sim.now += gap
        control.step(OBS, sim.now)
        assert control.report().faults.get("clock_jump", 0) == faults


def test_a_late_plan_is_held_once_and_what_has_passed_of_it_is_dropped():
    sim = Sim()

    def sleep(seconds):
        sim.now += seconds

    control = session(sim, DelayedPlanner(Walker(), 0.2, sleep=sleep), limits=FREE, blend=0.0)
    control.step(OBS, sim.now)
    assert [fault.kind for fault in control.last.faults] == [FaultKind.LATE_PLAN]
    sim.now += PERIOD
    command = control.step(OBS, sim.now)
    assert command == pytest.approx(control._planning.current.knots[4], abs=1e-9)
    assert control.report().missed_deadlines == 1


def test_an_old_plan_is_never_followed_after_the_clock_jumped():
    sim, planner = Sim(), Walker()
    control = session(sim, planner)
    drive(control, sim, 2)
    old = control._planning.current
    for leap in (7.0, -3.0):
        sim.now += leap
        control.step(OBS, sim.now)
        assert control.last.source == "hold"
        assert control._planning.current is not old
    assert control.report().faults["clock_jump"] == 2


# --- Planning ahead ---


@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("foresees", [True, False])
def test_planning_ahead_never_leaves_the_loop_without_a_plan(delay, foresees):
    sim = Sim()
    control = session(sim, Walker(foresees=foresees), delay_s=delay * PERIOD)
    drive(control, sim, 60)
    report = control.report()
    assert report.faults == {}
    assert report.held == 0
    assert report.plans >= 8


def test_a_plan_made_ahead_continues_the_commands_that_were_sent():
    sim = Sim()
    control = session(sim, delay_s=2 * PERIOD, limits=FREE)
    joined, sent = {}, []
    for tick in range(40):
        sim.now = 100.0 + tick * PERIOD
        sent.append(control.step(OBS if not sent else np.array([*sent[-1], 1.0]), sim.now))
        plan = control._planning.current
        if plan is not None and plan.index not in joined:
            joined[plan.index] = (plan.start == tick, np.abs(plan.knots[0] - sent[-2]).max() if tick else 0.0)
    on_time = [gap for exactly, gap in joined.values() if exactly]
    assert len(on_time) >= 7
    assert max(on_time) < 1e-4


def test_a_worker_that_is_too_slow_is_in_the_report_and_the_robot_stands():
    sim = Sim()
    control = session(sim, delay_s=1.5)
    drive(control, sim, 60, follow=False)
    assert control.report().faults["late_plan"] >= 1
    assert control.report().held > 0


def test_a_worker_plans_in_a_thread_of_its_own_and_ends_with_the_session():
    seen = []

    class Telling(Walker):
        def plan_from(self, states, *, steps, seed):
            seen.append(threading.current_thread())
            return super().plan_from(states, steps=steps, seed=seed)

    with Session(
        Telling(), SessionConfig(plan_ahead=True, deadline_s=10), calibration=CALIBRATION
    ) as control:
        assert np.isfinite(control.step(OBS)).all()
        assert control.last.source == "plan"
    assert seen[0] is not threading.main_thread()
    seen[0].join(timeout=10)
    assert not seen[0].is_alive()


AT_THE_END = """
import sys, time
sys.path.append("tests")
from tests.helpers.numpy_planner import CALIBRATION, Walker
from nsde_policy.control import Session, SessionConfig
class Slow(Walker):
    def plan_from(self, states, **options):
        time.sleep(0.5)
        print("planned", flush=True)
        return super().plan_from(states, **options)
with Session(Slow(), SessionConfig(plan_ahead=True, deadline_s=1e-3), calibration=CALIBRATION) as control:
    control.step([50.0, 40.0, 1.0])
print(control.last.source, flush=True)
"""


def test_a_program_ends_after_the_plan_under_way_because_python_aborts_beside_torch():
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["wait", "planned"], "")


@pytest.mark.parametrize("error", [RuntimeError("the network broke"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_worker_raises_is_in_the_report_and_it_goes_on_planning(error):
    failing = [error]

    class Breaking(Walker):
        def plan_from(self, states, *, steps, seed):
            if failing:
                raise failing.pop()
            return super().plan_from(states, steps=steps, seed=seed)

    sim, planner = Sim(), Breaking()
    config = SessionConfig(plan_ahead=True, deadline_s=10)
    with Session(planner, config, calibration=CALIBRATION, clock=sim.clock) as control:  # a real thread
        control.step(OBS, sim.now)
        assert [fault.kind for fault in control.last.faults] == [FaultKind.PLANNER_ERROR]
        assert type(error).__name__ in control.last.faults[0].detail
        sim.now += PERIOD
        control.step(OBS, sim.now)
        sim.now += PERIOD
        control.step(OBS, sim.now)
        assert control.last.source == "plan"
    assert control.report().faults == {"planner_error": 1}


def test_a_worker_that_never_answers_is_in_the_report_once_per_episode_and_the_robot_stands():
    sim = Sim()
    control = session(sim, delay_s=1e9)
    commands = drive(control, sim, 30, follow=False)
    assert control.report().faults == {"late_plan": 1}
    assert (commands == commands[0]).all()
    control.reset()
    drive(control, sim, 30, follow=False)
    assert control.report().faults == {"late_plan": 2}


@pytest.mark.parametrize("trouble", ["raise", "nan", "shape"])
def test_what_went_wrong_with_a_plan_that_came_too_late_for_its_episode_is_counted(trouble):
    kind = {"raise": "planner_error"}.get(trouble, "non_finite_plan")
    sim = Sim()
    planner = FailingWalker(sim)
    control = session(sim, planner, delay_s=PERIOD)
    planner.trouble = trouble
    control.step(OBS, sim.now)
    control.reset()
    sim.now += PERIOD
    control.step(OBS, sim.now)
    assert control.report().faults == {kind: 1}
    assert control.last.faults == (), "it is no fault of the episode that has begun"


def test_what_went_wrong_with_the_last_plan_is_counted_when_the_session_ends():
    sim = Sim()
    planner = FailingWalker(sim)
    control = session(sim, planner, delay_s=PERIOD)
    planner.trouble = "raise"
    control.step(OBS, sim.now)
    sim.now += PERIOD
    control.close()
    assert control.report().faults == {"planner_error": 1}


# --- Garbage ---


def opened(**settings):
    return Session(Walker(), SessionConfig(**settings), calibration=CALIBRATION)


def test_while_a_session_is_open_older_objects_are_left_alone_by_the_collector():
    assert gc.get_freeze_count() == 0
    with opened():
        assert gc.get_freeze_count() > 1000
        with opened() as second:
            second.close()  # a second time at the end of the block
        assert gc.get_freeze_count() > 1000, "the first one still runs"
    assert gc.get_freeze_count() == 0
    with opened(spare_gc=False):
        assert gc.get_freeze_count() == 0


def test_a_program_that_set_its_objects_aside_itself_finds_them_so_afterwards():
    gc.freeze()
    try:
        with opened():
            pass
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("ahead", [False, True])
def test_after_its_end_a_session_takes_no_step_but_its_plan_still_has_commands(ahead):
    sim = Sim()
    with session(sim, delay_s=0.0 if ahead else None, rate_hz=50) as control:
        drive(control, sim, 8, rate=50)
    assert np.isfinite(control.action_at(sim.now + 0.004)).all()
    assert control.last.source == "plan"
    with pytest.raises(SessionClosedError, match="closed and takes no step; open another"):
        control.step(OBS, sim.now)
    control.reset()
    with pytest.raises(SessionClosedError):
        control.step(OBS, sim.now)


# --- Reports ---


@pytest.mark.parametrize("kind", [Path, str])
def test_the_report_and_the_log_tell_the_same(tmp_path, kind):
    sim = Sim()
    planner = FailingWalker(sim)
    control = session(sim, planner, log=kind(tmp_path / "log" / "session.jsonl"))
    drive(control, sim, 9)
    planner.trouble = "raise"
    drive(control, sim, 9)
    control.close()
    lines = [json.loads(line) for line in (tmp_path / "log" / "session.jsonl").read_text().splitlines()]
    report = json.loads(control.report().to_json())
    assert len(lines) == report["commands"] == 18
    assert sum("planner_error" in line["faults"] for line in lines) == report["faults"]["planner_error"] == 1
    assert "planner_error 1" in control.report().as_text()
    assert report["rate_hz"] == pytest.approx(10, rel=0.1)


def test_joins_are_as_smooth_as_the_rest_for_a_plan_that_starts_at_the_command_in_force():
    sim = Sim()
    control = session(sim, limits=FREE)
    drive(control, sim, 80)
    report = control.report()
    assert report.jerk_at_joins > 0
    assert report.jerk_elsewhere > 0


# --- The shipped policy ---


@pytest.fixture(scope="module")
def policy():
    return Policy.from_pretrained()


START = np.array([235.0, 124.0, 299.6, 145.2, 5.378])


def test_the_shipped_policy_knows_its_rate_its_limits_and_how_unsure_it_is(policy):
    sim = Sim()
    control = policy.session(rate_hz=50, deadline_s=0.05, limits="from_demos", on_fault="hold")
    assert control._settled.policy_hz == 10
    control = Session(policy, SessionConfig(), calibration=policy.calibration, clock=sim.clock)
    sigmas = []
    for _ in range(4):
        control.step(START, sim.now)
        sigmas.append(control.last.sigma)
        sim.now += PERIOD
    assert all((later > sooner).all() for sooner, later in pairwise(sigmas))
    assert not control.last.is_ood


def test_a_state_unlike_the_demonstrations_is_called_so(policy):
    control = Session(
        policy, SessionConfig(fault_when_ood=True), calibration=policy.calibration, clock=Sim().clock
    )
    control.step([510.0, 20.0, 30.0, 480.0, 1.0])
    assert control.last.is_ood
    assert control.report().faults == {"unfamiliar_state": 1}


@pytest.mark.parametrize(
    ("obs", "hint"),
    [
        (START * [1, 1, 1, 1, 180 / np.pi], "degrees"),
        (START * [1e-3, 1e-3, 1e-3, 1e-3, 1], "another unit"),
        (START * [1e3, 1e3, 1e3, 1e3, 1], "another unit"),
        (START[[4, 0, 1, 2, 3]], "another order"),
    ],
)
def test_units_and_orders_that_cannot_be_right_are_refused_and_held_in_a_session(policy, obs, hint):
    policy.reset()
    with pytest.raises(PolicyInputError, match=hint):
        policy.select_action(obs)
    with pytest.raises(PolicyInputError, match=hint):
        policy.predict_action_chunk(obs)
    sim = Sim()
    control = Session(policy, SessionConfig(), calibration=policy.calibration, clock=sim.clock)
    control.step(START, sim.now)
    sim.now += PERIOD
    control.step(obs, sim.now)
    assert control.report().faults == {"implausible_observation": 1}


@pytest.mark.parametrize("when", ["x", [], float("nan")])
def test_a_time_that_is_no_number_is_a_fault_and_no_crash(when):
    sim = Sim()
    control = session(sim)
    control.step(OBS)
    sim.now += PERIOD
    assert np.isfinite(control.step(OBS, when)).all()
    assert control.last.faults
    assert np.isfinite(control.action_at(when)).all()
    assert control.last.faults[0].kind == FaultKind.CLOCK_JUMP


def test_without_statistics_of_the_demonstrations_no_state_is_called_familiar():
    control = session(Sim())
    control.step(OBS)
    assert control.last.ood is None
    with pytest.raises(ConfigError, match="fault_when_ood needs a calibration"):
        session(Sim(), fault_when_ood=True)
