"""The table of faults: how each is caused, what the session reports, and how it reacts."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import FaultKind
from nsde_policy.errors import PolicyInputError, SessionStoppedError
from nsde_policy.interface.planner import Plan
from tests.helpers import hostile_session as hostile
from tests.helpers.numpy_planner import CALIBRATION, FailingWalker, Sim
from tests.helpers.sessions import OBS, PERIOD, make_session


class Robot:
    """A robot that sends observations to a session, some of them faulty, and checks every command."""

    def __init__(self, **settings) -> None:
        self.sim = Sim()
        self.planner = FailingWalker(self.sim)
        self.session = make_session(self.sim, self.planner, **settings)
        self.seen_at = self.sim.now
        self.command = OBS[:2]

    def step(self, obs=OBS, *, t=None, after=PERIOD):
        """Send an observation, with the time now by default; return the kinds of faults."""
        self.sim.now += after
        command = self.session.step(obs, self.sim.now if t is None else t)
        limits = self.session.resolved.limits
        assert ((limits.low <= command) & (command <= limits.high)).all()
        assert (np.abs(command - self.command) <= limits.speed * PERIOD + 1e-9).all()
        self.command, self.seen_at = command, self.sim.now
        return [fault.kind for fault in self.session.last.faults]

    def run(self, periods):
        """Send good observations for some periods; return the kinds of all faults."""
        return [kind for _ in range(periods) for kind in self.step()]

    def spoil_plan(self, trouble):
        """Let the next plan fail, and return the kinds of faults when it is requested."""
        self.planner.trouble = trouble
        return next(kinds for _ in range(9) if (kinds := self.step()))


CAUSES: dict[str, tuple[Callable[[Robot], list[FaultKind]], FaultKind]] = {
    "NaN": (lambda r: r.step(OBS * np.nan), FaultKind.NON_FINITE_OBSERVATION),
    "infinity": (lambda r: r.step([50.0, -np.inf, 1.0]), FaultKind.NON_FINITE_OBSERVATION),
    "too short": (lambda r: r.step(OBS[:2]), FaultKind.WRONG_OBSERVATION),
    "a batch": (lambda r: r.step(OBS[None]), FaultKind.WRONG_OBSERVATION),
    "text": (lambda r: r.step("no observation"), FaultKind.WRONG_OBSERVATION),
    "degrees": (lambda r: r.step([50.0, 40.0, 180.0]), FaultKind.IMPLAUSIBLE_OBSERVATION),
    "micrometres": (lambda r: r.step([5e7, 4e7, 1.0]), FaultKind.IMPLAUSIBLE_OBSERVATION),
    "old": (lambda r: r.step(t=r.sim.now - 0.4), FaultKind.STALE_OBSERVATION),
    "reordered": (lambda r: r.step(t=r.seen_at - 0.01), FaultKind.REORDERED_OBSERVATION),
    "repeated": (lambda r: r.step(t=r.seen_at), FaultKind.REPEATED_OBSERVATION),
    "missing": (lambda r: r.step(None), FaultKind.MISSING_OBSERVATION),
    "silence": (lambda r: r.step(after=2 * PERIOD), FaultKind.MISSING_OBSERVATION),
    "from the future": (lambda r: r.step(t=r.sim.now + 5.0), FaultKind.CLOCK_JUMP),
    "no time": (lambda r: r.step(t="noon"), FaultKind.CLOCK_JUMP),
    "clock goes back": (lambda r: r.step(after=-3.0), FaultKind.CLOCK_JUMP),
    "clock jumps ahead": (lambda r: r.step(after=3.0), FaultKind.CLOCK_JUMP),
    "planner raises": (lambda r: r.spoil_plan("raise"), FaultKind.PLANNER_ERROR),
    "plan of NaN": (lambda r: r.spoil_plan("nan"), FaultKind.NON_FINITE_PLAN),
    "plan of one column": (lambda r: r.spoil_plan("shape"), FaultKind.NON_FINITE_PLAN),
    "plan without actions": (lambda r: r.spoil_plan("empty"), FaultKind.NON_FINITE_PLAN),
    "slow planner": (lambda r: r.spoil_plan("slow"), FaultKind.LATE_PLAN),
}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("cause", CAUSES)
def test_a_fault_is_reported_held_and_followed_by_a_new_plan(cause, ahead):
    fail, kind = CAUSES[cause]
    if ahead and cause in ("slow planner", "clock goes back"):
        pytest.skip("a session that plans ahead does not wait, and a simulated worker goes by the clock")
    robot = Robot(delay_s=PERIOD if ahead else None)
    assert robot.run(5) == []
    assert kind in fail(robot)
    assert robot.session.last.source == "hold"
    assert robot.session.report().faults[kind.value] == 1
    before = robot.session.report().plans
    assert robot.run(4) == []
    assert robot.session.last.source == "plan"
    assert robot.session.report().plans > before, "the plan from before the fault is not used"


@pytest.mark.parametrize("cause", ["NaN", "missing", "clock goes back", "planner raises"])
def test_stop_brakes_and_then_raises_until_reset(cause):
    fail, kind = CAUSES[cause]
    robot = Robot(on_fault="stop")
    assert robot.run(5) == []
    fail(robot)
    with pytest.raises(SessionStoppedError, match=rf"{kind}.*call reset\(\)"):
        robot.run(20)
    robot.session.reset()
    robot.step()
    assert robot.session.last.source == "plan"


def test_a_mapping_sets_reactions_by_the_name_of_a_kind():
    robot = Robot(on_fault=MappingProxyType({"wrong_observation": "stop"}))
    for obs in (OBS, OBS * np.nan, "nothing"):
        robot.step(obs)
    with pytest.raises(SessionStoppedError, match="wrong_observation"):
        robot.run(20)


def test_the_command_of_a_callback_is_limited():
    kinds = []

    def answer(fault):
        kinds.append(fault.kind)
        return np.array([1e9, 1e9])

    robot = Robot(on_fault={FaultKind.WRONG_OBSERVATION: answer})
    robot.step()
    robot.step("nothing")
    assert kinds == [FaultKind.WRONG_OBSERVATION]
    assert robot.session.last.source == "callback"


def fail(_):
    raise ZeroDivisionError("a bug in\na callback")


@pytest.mark.parametrize("callback", [fail, lambda _: [1e308, 1e308], lambda _: "left"])
@pytest.mark.parametrize("reaction", ["hold", "stop"])
def test_a_callback_that_raises_or_returns_no_command_is_a_fault_too(callback, reaction):
    robot = Robot(on_fault={FaultKind.WRONG_OBSERVATION: callback, FaultKind.CALLBACK_ERROR: reaction})
    robot.step()
    assert robot.step("nothing") == [FaultKind.WRONG_OBSERVATION, FaultKind.CALLBACK_ERROR]
    assert robot.session.last.source == "hold"
    if callback is fail:
        assert robot.session.last.faults[-1].detail == "ZeroDivisionError: a bug in a callback"
    if reaction == "stop":
        with pytest.raises(SessionStoppedError, match="callback_error"):
            robot.run(20)


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (Plan(np.full((5, 2), 1.7e308)), "actions are not finite in float32"),
        (Plan(np.zeros((3, 2)), np.full((4, 5), np.inf)), "states are not finite"),
        (Plan(np.zeros((3, 2)), np.zeros((3, 5))), r"states have shape \(3, 5\), expected \(4, 5\)"),
        (Plan(np.zeros(2)), r"actions have shape \(2,\), expected \(steps, 2\)"),
        (Plan([[1.0, 2.0], [3.0]]), "plan must hold numbers"),
        (None, "returned NoneType, expected Plan"),
        (hostile.EvilPlan(np.zeros((5, 2))), "RuntimeError: no fields"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_a_fault(answer, detail):
    robot = Robot()
    robot.planner.plan_from = lambda states, **_: answer
    assert robot.step() == [FaultKind.NON_FINITE_PLAN]
    assert re.search(detail, robot.session.last.faults[0].detail)


def test_there_is_no_command_before_the_first_valid_observation_unless_a_position_is_given():
    robot = Robot()
    with pytest.raises(PolicyInputError, match="before the first valid observation: non_finite"):
        robot.step(OBS * np.nan)
    assert robot.session.report().faults == {"non_finite_observation": 1}
    robot.step()
    placed = Robot(initial_command=[20.0, 30.0])
    placed.command = np.array([20.0, 30.0])
    for obs in (None, "nothing", OBS * np.nan):
        placed.step(obs)
        assert placed.command.tolist() == [20.0, 30.0]
    placed.step()
    assert placed.session._scheduler.current.knots[0].tolist() == [20.0, 30.0]


def test_the_documented_table_of_faults_is_complete():
    text = (Path(__file__).parents[2] / "docs/control_loop.md").read_text()
    rows = text.partition("| kind | when |")[2].partition("\n\n")[0].splitlines()[2:]
    kinds = [kind for row in rows for kind in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(kinds) == sorted(FaultKind)
    others = {FaultKind.CALLBACK_ERROR, FaultKind.OUT_OF_DISTRIBUTION, FaultKind.HIDDEN_SCENE}
    caused = {kind for _, kind in CAUSES.values()} | others
    assert caused == {kind for kind in FaultKind if not kind.endswith("_frame")}


FAR = np.array([50.0, -900.0, 1.0])


@pytest.mark.parametrize("rate_hz", [10.0, 50.0])
def test_a_jump_is_a_fault_for_two_policy_periods_if_the_value_stays(rate_hz):
    robot, per_period = Robot(rate_hz=rate_hz), int(rate_hz / 10)
    kinds = [robot.step(after=1 / rate_hz) for _ in range(5 * per_period)]
    kinds += [robot.step(FAR, after=1 / rate_hz) for _ in range(5 * per_period)]
    held = [index for index, faults in enumerate(kinds) if faults == ["implausible_observation"]]
    assert held == [*range(5 * per_period, 7 * per_period)]
    assert robot.session.last.source == "plan"


@pytest.mark.parametrize("is_fault", [False, True])
def test_a_value_that_stays_far_outside_is_reported_and_a_fault_if_asked_for(is_fault):
    sim, features = Sim(), 6
    calibration = replace(  # every state is near the demonstrations by its distance
        CALIBRATION, mean=(0.0,) * features, precision=((0.0,) * features,) * features, threshold=1.0
    )
    config = SessionConfig(fault_when_ood=is_fault)
    session = Session(FailingWalker(sim), config, calibration=calibration, clock=sim.clock)
    for tick in range(12):
        session.step([50.0, 50.0 - 20 * tick, 1.0], sim.now)
        sim.now += PERIOD
    assert session.last.is_ood
    assert "obs[1] is -170, but was in [0, 100]" in session.last.outside
    assert session.last.source == ("hold" if is_fault else "plan")
    report = session.report()
    assert report.faults == ({"out_of_distribution": 4} if is_fault else {})
    assert report.out_of_distribution == 4
    assert f"far outside the demonstrations: {session.last.outside}" in report.to_text()
