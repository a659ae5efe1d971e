"""Actions that are changes per period; a robot adds them up, and its position is the oracle."""

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import SessionStoppedError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Plan, Planner
from tests.helpers.numpy_planner import SPEC, Sim
from tests.helpers.sessions import OBS, PERIOD
from tests.helpers.simulated_time import SimulatedWorker

NAN_OBS = np.full(3, np.nan)
START = np.array([50.0, 40.0])


class Deltas(Planner):
    """Planner of changes that all differ; it records the states that it was given."""

    spec = SPEC

    def __init__(self, low: float = -5.0, high: float = 5.0) -> None:
        self._rng, self._low, self._high = np.random.default_rng(0), low, high
        self.plans: list[np.ndarray] = []
        self.states: list[np.ndarray] = []

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        self.states.append(states)
        self.plans.append(self._rng.uniform(self._low, self._high, (steps, 2)))
        return Plan(self.plans[-1].copy())


class Robot:
    """A robot that adds up the changes of a session; `step` is what `hold`, `stop` and starts may change."""

    def __init__(self, *, low=-5.0, high=5.0, step=12.0, **settings) -> None:
        self.sim, self.planner = Sim(), Deltas(low, high)
        self.broken: object = None
        calibration = Calibration(
            rate_hz=10.0,
            step=(step, step),
            acceleration=(5.0, 5.0),
            mean=(),
            precision=(),
            threshold=0.0,
            action_low=(low, low),
            action_high=(high, high),
            delta_columns=(0, 1),
        )
        worker = SimulatedWorker(self.sim.clock, delay_s=0.15) if settings.get("plan_ahead") else None
        self.session = Session(
            self.planner, SessionConfig(**settings), calibration=calibration, clock=self.read, worker=worker
        )
        self.position = START.copy()

    def read(self) -> object:
        if isinstance(self.broken, Exception):
            raise self.broken
        return self.sim.now if self.broken is None else self.broken

    def step(self, obs=OBS, after: float = PERIOD) -> np.ndarray:
        """Let time pass, and move by the next change."""
        self.sim.now += after
        change = self.session.step(obs)
        self.position += change
        return change


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_each_change_is_sent_once_however_often_a_period_asks(ahead: bool, calls: int):
    robot, sent = Robot(plan_ahead=ahead), []
    for call in range(24 * calls):
        sent.append(robot.step(after=PERIOD / calls))
        if call % calls or robot.session.last.source != "plan":
            assert not sent[-1].any(), "nothing moves again, and nothing without a plan"
    sent = [change for change in sent if change.any()]
    assert len(sent) >= 20
    distance = np.abs(np.reshape(sent, (-1, 1, 2)) - np.concatenate(robot.planner.plans)).max(-1)
    assert (distance.min(1) < 1e-9).all(), "a change that was not planned"
    rows = distance.argmin(1).tolist()
    assert len(rows) == len({*rows})
    assert robot.session.report().faults == {}


def test_the_policy_sees_all_changes_of_a_period_as_its_action():
    robot = Robot(chunk=2)
    first, _, second, _, _ = (robot.step(after=after) for after in (PERIOD, 0.04, 0.06, 0.01, 0.09))
    assert (robot.planner.states[1][:, 3:] == np.float32([second, first])).all()


CLOCKS = {"raises": OSError("off"), "stands still": None, "goes back": None}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("reaction", ["hold", "stop"])
@pytest.mark.parametrize("step", [12.0, 0.5])
def test_a_robot_rests_while_the_clock_fails(clock: str, reaction: str, step: float):
    robot = Robot(on_fault=reaction, step=step)
    for _ in range(6):
        robot.step()
    robot.broken, before = CLOCKS[clock], robot.position.copy()
    after = -0.7 if clock == "goes back" else 0.0
    obs = NAN_OBS if clock == "stands still" else OBS
    if reaction == "hold":
        for _ in range(50):
            robot.step(obs, after)
    else:
        robot.step(obs, after)
        with pytest.raises(SessionStoppedError):
            robot.step(obs, after)
    assert (robot.position == before).all()
    robot.broken = None
    robot.session.reset()
    assert any(robot.step().any() for _ in range(3)), "the session goes on with a good clock"


@pytest.mark.parametrize(("low", "high"), [(0.8, 1.2), (-1.2, -0.8), (-1.0, 1.0)])
@pytest.mark.parametrize("reaction", ["hold", "stop", lambda _: None])
@pytest.mark.parametrize("step", [2.0, 0.3])
def test_hold_and_stop_end_at_rest_whatever_the_demonstrated_range_is(low, high, reaction, step):
    robot = Robot(low=low, high=high, step=step, on_fault=reaction)
    changes = [np.zeros(2), *(robot.step() for _ in range(6))]
    try:
        for _ in range(8):
            changes.append(robot.step(NAN_OBS))
    except SessionStoppedError:
        assert reaction == "stop"
    assert not changes[-1].any()
    assert np.abs(np.diff(changes, axis=0)).max() <= step + 1e-9
    assert min(low, 0) <= np.min(changes) <= np.max(changes) <= max(high, 0)


def test_periods_without_a_command_count_as_braking():
    robot = Robot(low=3.0, high=5.0, step=1.0, max_gap_s=9.0)
    for _ in range(8):
        change = robot.step()
    assert change.min() >= 3
    assert robot.step(NAN_OBS, after=0.3) == pytest.approx(change - 3)


@pytest.mark.parametrize("given", ["initial_command", "reset", "neither"])
def test_changes_rest_at_zero_wherever_the_robot_is(given: str):
    robot = Robot(step=1.0, initial_command=START if given == "initial_command" else None)
    if given == "reset":
        robot.session.reset(START)
    if given != "neither":
        assert not robot.step("nothing").any()
        assert not robot.step(None).any()
    robot.session.reset()
    change = robot.step()
    assert change == pytest.approx(np.clip(robot.planner.plans[-1][0], -1, 1))


def test_a_reset_does_not_send_two_changes_in_one_period():
    robot = Robot()
    assert robot.step().any()
    robot.session.reset()
    assert not robot.step(after=0.03).any()
    assert robot.step().any()
