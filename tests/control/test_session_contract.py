"""The contract of a session; hypothesis owns the planner, the worker, the callbacks and the clock."""

import threading
import time

import numpy as np
import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import PolicyInputError
from tests.helpers import hostile_session as hostile
from tests.helpers.numpy_planner import CALIBRATION, Sim, Walker
from tests.helpers.sessions import OBS, PERIOD, make_session, run_session

COMMANDS = 5_000


def index(values):
    """Draw an index: some of the values cannot be printed."""
    return st.integers(0, len(values) - 1)


MOMENT = st.tuples(
    index(hostile.SHIFTS),
    st.one_of(st.none(), index(hostile.TIMES)),
    st.one_of(st.none(), st.none(), index(hostile.VALUES)),
)


class SessionMachine(RuleBasedStateMachine):
    commands = 0

    @initialize(
        rate=st.sampled_from([10.0, 20.0, 125.0]),
        blend=st.sampled_from([0.0, 2.0]),
        ahead=st.booleans(),
        on_fault=st.integers(0, 4),
        start=st.sampled_from([None, hostile.START, (1e9, -1e9)]),
        cameras=st.booleans(),
        deltas=st.sampled_from([(), (1,), (0, 1)]),
    )
    def open(self, rate, blend, ahead, on_fault, start, cameras, deltas):
        rate = 10.0 if deltas else rate
        settings = hostile.Settings(rate, blend, ahead, on_fault, start, cameras, deltas)
        self.attack = hostile.HostileSession(settings)

    @rule(plan=st.one_of(st.none(), index(hostile.PLANS)), worker=st.sampled_from(hostile.WORKERS))
    def choose_plans(self, plan, worker):
        self.attack.plan = hostile.WALK if plan is None else hostile.PLANS[plan]
        self.attack.worker = worker

    @rule(answer=st.one_of(st.sampled_from([hostile.REENTER, hostile.RESET]), index(hostile.VALUES)))
    def choose_answers(self, answer):
        self.attack.answer = hostile.VALUES[answer] if isinstance(answer, int) else answer

    @rule(features=st.one_of(st.none(), index(hostile.VALUES)))
    def choose_features(self, features):
        self.attack.features = [0.1, -0.1] if features is None else hostile.VALUES[features]

    @rule(position=st.sampled_from([None, hostile.START, (0.0, 100.0)]))
    def reset(self, position):
        self.attack.reset(position)

    @rule(moments=st.lists(MOMENT, min_size=4, max_size=10))
    def run(self, moments):
        attack = self.attack
        for number, (shift, clock, value) in enumerate(5 * moments):
            attack.true_time += hostile.SHIFTS[shift] / attack.settings.rate_hz
            attack.now = attack.true_time if clock is None or number % 3 else hostile.TIMES[clock]
            given = [50.0 + number, 40.0, 1.0] if value is None else hostile.VALUES[value]
            if attack.settings.cameras and number % 3:  # a frame of any kind, and a good one by turns
                bad = hostile.FRAMES[(number + shift) % len(hostile.FRAMES)]
                frame = bad if number % 2 else hostile.FRAME
                given = {hostile.STATE: [50.0 + number, 40.0, 1.0], hostile.CAMERA: frame}
            attack.step(given, attack.now if number % 2 else given if value is not None else None)
        SessionMachine.commands += 5 * len(moments)


def test_no_hostile_planner_worker_callback_clock_or_observation_breaks_the_contract():
    chosen = settings(max_examples=20, stateful_step_count=14, derandomize=False, database=None)
    SessionMachine.commands, number = 0, 0
    while SessionMachine.commands < COMMANDS:
        run_state_machine_as_test(seed(number)(SessionMachine), settings=chosen)
        number += 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_in_the_callers_thread_get_through_and_the_session_goes_on(error):
    sim = Sim()

    def interrupt(_):
        raise error

    session = make_session(sim, on_fault=interrupt)
    before = run_session(session, sim, 3)[-1]
    sim.now += PERIOD
    with pytest.raises(error):
        session.step("nothing", sim.now)
    sim.now += PERIOD
    command = session.step(OBS, sim.now)
    assert (np.abs(command - before) <= CALIBRATION.step).all()


def test_a_session_cannot_be_used_from_its_own_callback():
    sim, found = Sim(), []

    def use(_):
        for call in (lambda: session.step(OBS), session.reset):
            with pytest.raises(PolicyInputError, match="the session is computing a command"):
                call()
            found.append(call)

    session = make_session(sim, on_fault=use)
    run_session(session, sim, 3)
    sim.now += PERIOD
    session.step("nothing", sim.now)
    assert len(found) == 2
    assert session.report().faults == {"wrong_observation": 1}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_planner_that_hangs_does_not_block_the_loop(ahead):
    released, finished = threading.Event(), threading.Event()

    class HangingWalker(Walker):
        def plan_from(self, states, *, steps, seed, candidates=None):
            released.wait(20)
            finished.set()
            return super().plan_from(states, steps=steps, seed=seed)

    config = SessionConfig(rate_hz=50, plan_ahead=ahead, deadline_s=0.01)
    with Session(HangingWalker(), config, calibration=CALIBRATION) as session:
        commands = [session.step(OBS) for _ in range(3)]
        assert not finished.is_set(), "the steps came back before the planner"
        assert (np.array(commands) == OBS[:2]).all()
        assert ("late_plan" in session.report().faults) == (not ahead)
        released.set()
        ends = time.monotonic() + 60
        while session.last.source != "plan" and time.monotonic() < ends:
            time.sleep(0.02)
            session.step(OBS)
        assert session.last.source == "plan", "the session follows plans again"


def test_a_planner_that_takes_long_in_real_time_is_on_time_if_the_clock_is_simulated():
    class SlowWalker(Walker):
        def plan_from(self, states, *, steps, seed, candidates=None):
            time.sleep(0.05)
            return super().plan_from(states, steps=steps, seed=seed)

    sim = Sim()
    session = make_session(sim, SlowWalker(), deadline_s=0.01)
    run_session(session, sim, 5)
    assert session.report().faults == {}
