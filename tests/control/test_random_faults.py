"""Random fault injection: in 2,000 sequences every command is safe and every fault is reported."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.faults import FaultKind
from nsde_policy.errors import PolicyInputError, SessionStoppedError
from tests.helpers.numpy_planner import CALIBRATION, SPEC, FailingWalker, Sim
from tests.helpers.simulated_time import InlineWorker, SimulatedWorker

SEQUENCES, PARTS, TICKS = 2_000, 5, 12
PERIOD = 1 / CALIBRATION.rate_hz
VALUE_FAULTS = {
    "nan": FaultKind.NON_FINITE_OBSERVATION,
    "inf": FaultKind.NON_FINITE_OBSERVATION,
    "short": FaultKind.WRONG_OBSERVATION,
    "text": FaultKind.WRONG_OBSERVATION,
    "degrees": FaultKind.IMPLAUSIBLE_OBSERVATION,
    "micrometres": FaultKind.IMPLAUSIBLE_OBSERVATION,
}
TIME_FAULTS = {
    "clock back": FaultKind.CLOCK_JUMP,
    "clock ahead": FaultKind.CLOCK_JUMP,
    "from the future": FaultKind.CLOCK_JUMP,
    "no time": FaultKind.CLOCK_JUMP,
    "old": FaultKind.STALE_OBSERVATION,
    "reordered": FaultKind.REORDERED_OBSERVATION,
    "repeated": FaultKind.REPEATED_OBSERVATION,
    "dropped": FaultKind.MISSING_OBSERVATION,
    "silence": FaultKind.MISSING_OBSERVATION,
}
PLANNER_FAULTS = {
    "raise": FaultKind.PLANNER_ERROR,
    "nan": FaultKind.NON_FINITE_PLAN,
    "inf": FaultKind.NON_FINITE_PLAN,
    "shape": FaultKind.NON_FINITE_PLAN,
    "empty": FaultKind.NON_FINITE_PLAN,
    "slow": FaultKind.LATE_PLAN,
}


class Robot:
    """Robot that sends observations to a session, some of them faulty, and checks every command."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.sim = rng, Sim()
        self.planner = FailingWalker(self.sim, predicts=bool(rng.random() < 0.7))
        self.ahead = bool(rng.random() < 0.5)
        self.rate = float(rng.choice([10, 10, 20, 50, 125]))
        config = SessionConfig(
            rate_hz=self.rate, on_fault=self._reaction(), plan_ahead=self.ahead, seed=int(rng.integers(1000))
        )
        delay = float(rng.choice([0.0, 0.02, 0.1, 0.37, 1.0]))
        self.session = Session(
            self.planner,
            config,
            calibration=CALIBRATION,
            clock=self.sim.clock,
            worker=SimulatedWorker(self.sim.clock, delay_s=delay) if self.ahead else InlineWorker(),
        )
        self.injected: Counter[str] = Counter()
        self.position = rng.uniform(5, 95, 2)
        self.origin, self.tick, self.started = self.sim.now, 0, False
        self.newest, self.called, self.returned = -math.inf, self.sim.now, self.sim.now
        self.command: np.ndarray | None = None
        self.velocity = np.zeros(2)
        self.sent_at: float | None = None
        self.sent = 0

    def _reaction(self):
        answers = [np.array([1e9, np.nan]), np.array([1e9, -1e9]), None, np.zeros(3), "left", [[1.0], 2.0]]

        def answer(_):
            return answers[int(self.rng.integers(len(answers)))]

        def fail(_):
            if self.rng.random() < 0.5:
                return
            self.injected[FaultKind.CALLBACK_ERROR.value] += 1
            raise self.rng.choice([KeyError, ZeroDivisionError, RuntimeError])("a bug in\na callback")

        stops = {FaultKind.CLOCK_JUMP: "stop"}
        fails = dict.fromkeys(FaultKind, fail) | {FaultKind.CALLBACK_ERROR: "stop"}
        return ["hold", "hold", "stop", answer, stops, fail, fails][int(self.rng.integers(7))]

    def run(self) -> None:
        for _ in range(TICKS):
            self.tick = max(self.tick, math.floor((self.sim.now - self.origin) * self.rate + 1e-6)) + 1
            self.sim.now = self.origin + self.tick / self.rate
            self._run_tick()
        self.sim.now += 1000.0  # a fault of a worker is reported when its result arrives
        self.session.close()

    def _run_tick(self) -> None:
        rng = self.rng
        value_fault, time_fault = (
            rng.choice(list(table)) if rng.random() < 0.15 else None for table in (VALUE_FAULTS, TIME_FAULTS)
        )
        if rng.random() < 0.15:
            self.planner.trouble = str(rng.choice(list(PLANNER_FAULTS)))
        obs = np.array([*self.position, rng.uniform(0, 6)])
        time, expected, obs = self._inject_time_fault(time_fault, obs)
        if obs is not None and value_fault is not None:
            obs = self._inject_value_fault(value_fault, obs)
            expected.append(VALUE_FAULTS[value_fault])
        failed_before = len(self.planner.failed)
        self.called = self.sim.now
        try:
            action = self.session.step(obs, time)
        except SessionStoppedError:
            self._reset()
            return
        except PolicyInputError:
            assert self.command is None, "a session that has sent a command can hold it"
            self.started, self.returned = True, self.sim.now
            self.injected.update(kind.value for kind in expected)
            return
        self.started, self.returned = True, self.sim.now
        for trouble in self.planner.failed[failed_before:]:
            if trouble != "slow" or not self.ahead:
                expected.append(PLANNER_FAULTS[trouble])
        self.injected.update(kind.value for kind in expected)
        self._check(action)
        self.position = 0.5 * self.position + 0.5 * action
        if rng.random() < 0.3:
            self._request_action_between_ticks()

    def _request_action_between_ticks(self) -> None:
        self.sim.now += self.rng.uniform(0, 0.9) / self.rate
        try:
            action = self.session.action_at(self.sim.now + self.rng.uniform(-0.002, 0.01))
        except SessionStoppedError:
            self._reset()
        else:
            self._check(action)
        self.returned = self.sim.now

    def _inject_time_fault(self, wrong, obs):
        """Return the time stamp, the expected faults, and the observation or None."""
        rng, sim = self.rng, self.sim
        if not self.started and wrong in ("clock back", "clock ahead", "silence"):
            wrong = None
        if wrong == "clock back":
            self.sent_ahead_s = max((self.sent_at or sim.now) - self.returned, 0.0)
            sim.now -= rng.uniform(0.3, 5)
            self.went_back = True
            self._restart_time()
        elif wrong == "clock ahead":
            sim.now += rng.uniform(0.6, 5)
            self._restart_time()
        elif wrong == "silence":
            self.tick = math.ceil((self.returned + 0.2 - self.origin) * self.rate - 1e-6)
            sim.now = self.origin + self.tick / self.rate
        time = sim.now
        if wrong == "from the future":
            return sim.now + rng.uniform(0.2, 9), [TIME_FAULTS[wrong]], obs
        if wrong == "no time":
            return float(rng.choice([np.nan, np.inf, -np.inf])), [TIME_FAULTS[wrong]], obs
        if wrong == "old":
            time = sim.now - rng.uniform(0.16, 2)
        elif wrong == "reordered" and math.isfinite(self.newest):
            time = self.newest - rng.uniform(0.001, 0.1)
        elif (
            wrong == "repeated"
            and math.isfinite(self.newest)
            and self.rate == 10
            and self.taken == self.newest
        ):
            time = self.newest
        elif wrong == "dropped" and self.rate == 10:
            return time, [TIME_FAULTS[wrong]], None
        elif wrong not in ("clock back", "clock ahead", "silence"):
            wrong = None
        self.newest = max(self.newest, time)
        if wrong is None:
            self.taken = time
        return time, [TIME_FAULTS[wrong]] if wrong else [], obs

    taken, went_back = math.nan, False

    def _restart_time(self) -> None:
        self.origin, self.tick, self.newest, self.taken = self.sim.now, 0, -math.inf, math.nan

    def _inject_value_fault(self, wrong, obs):
        self.taken = math.nan
        match wrong:
            case "nan":
                obs[self.rng.integers(3)] = np.nan
            case "inf":
                obs[self.rng.integers(3)] = -np.inf
            case "short":
                return obs[:2]
            case "text":
                return "no observation"
            case "degrees":
                obs[2] = 180.0
            case "micrometres":
                obs[:2] = 1e6
        return obs

    def _reset(self) -> None:
        self.session.reset()
        self.started = False
        self._restart_time()

    def _check(self, action: np.ndarray) -> None:
        """Check that a command is finite, within every limit, and for the current time.

        After the clock went back, no time is known to have passed.
        """
        limits, last = self.session.resolved.limits, self.session.last
        self.sent += 1
        assert action.shape == (2,)
        assert np.isfinite(action).all()
        assert (limits.low <= action).all()
        assert (action <= limits.high).all()
        tick = 1 / self.rate
        sent_at = self.sent_at
        if self.went_back and sent_at is not None:
            sent_at = self.called + self.sent_ahead_s
        since = tick if sent_at is None else max(last.time - sent_at, 0.0)
        dt = min(since, tick)
        before = np.clip(self.position, limits.low, limits.high) if self.command is None else self.command
        step = action - before
        assert (np.abs(step) <= limits.speed * dt + 1e-9).all()
        if dt > 1e-9:
            change = np.abs(step / dt - self.velocity)
            assert (change <= limits.acceleration * since + 1e-6).all()
            self.velocity = step / dt
        self.command = action
        self.sent_at = last.time if sent_at is None else max(sent_at, last.time)
        self.went_back = False
        assert abs(last.time - self.sim.now) <= tick + 0.011, "a command is for now"
        if last.source == "plan":
            asked, steps = self.planner.requests[last.plan]
            assert 0 <= last.time - last.planned_for + 1e-6 < PERIOD + 1e-5
            assert asked - tick <= last.time <= asked + (steps + SPEC.chunk * self.ahead) * PERIOD + tick


@pytest.mark.parametrize("part", range(PARTS))
def test_every_command_is_safe_and_every_fault_is_reported(part):
    injected: Counter[str] = Counter()
    sent = 0
    for seed in range(part * SEQUENCES // PARTS, (part + 1) * SEQUENCES // PARTS):
        robot = Robot(np.random.default_rng(seed))
        robot.run()
        report = robot.session.report()
        for kind, count in robot.injected.items():
            assert report.faults.get(kind, 0) >= count, f"seed {seed}: {kind}"
        assert report.commands == robot.sent
        injected += robot.injected
        sent += robot.sent
    assert sent > SEQUENCES / PARTS * 6
    of_cameras = {kind.value for kind in FaultKind if kind.endswith("_frame")}
    expected = {kind.value for kind in FaultKind} - {FaultKind.OUT_OF_DISTRIBUTION.value} - of_cameras
    assert {kind for kind, count in injected.items() if count >= 10} == expected


def test_a_sequence_without_faults_has_an_empty_report():
    robot = Robot(np.random.default_rng(3))
    session = Session(robot.planner, SessionConfig(), calibration=CALIBRATION, clock=robot.sim.clock)
    for _ in range(50):
        session.step(np.array([50.0, 50.0, 1.0]), robot.sim.now)
        robot.sim.now += PERIOD
    assert session.report().faults == {}
    assert dataclasses.asdict(session.report())["held"] == 0
