"""Attack control sessions with hostile planners, workers, callbacks, clocks and observations, and exits.

The contract and its state machine are those of `tests/control/test_session_contract.py`, with more commands.
"""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from hypothesis import seed as start_from
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from attacks import _hostile_session as hostile
from attacks.result import SURVIVED, Result, number_attempts
from nsde_policy.control import Session, SessionConfig
from nsde_policy.planner.interface import Plan
from tests.control.test_session_contract import SessionMachine

ROOT = Path(__file__).parents[2]
EXAMPLES = settings(max_examples=20, stateful_step_count=14, database=None, deadline=None)
EXIT_TIMEOUT_S = 240.0


def run(seconds: float, seed: int) -> Result:
    """Attack sessions, planners that hang, and programs that exit while a plan is being made."""
    result = Result()
    for number in number_attempts(0.6 * seconds):
        attack_commands(result, 10_000 * seed + number)
    for number in number_attempts(0.1 * seconds):
        result.count("sessions: planner hangs", run_with_hang(plan_ahead=bool(number % 2)), number)
    for number in number_attempts(0.3 * seconds):
        name, answer = exit_in_mid_plan(number)
        result.count("sessions: exit in mid-plan", answer, name)
    return result


def attack_commands(result: Result, seed: int) -> None:
    """Run the state machine of the tests; every command is within the contract, or refused as documented."""
    row, before = "sessions: commands", SessionMachine.commands
    try:
        run_state_machine_as_test(start_from(seed)(SessionMachine), settings=EXAMPLES)
    except Exception as error:
        result.count(row, f"{type(error).__name__} {error!s:.200}", f"seed {seed}")
    for _ in range(SessionMachine.commands - before):
        result.count(row, SURVIVED, seed)


class HangingPlanner:
    """Planner that does not return until it is released."""

    spec = hostile.SPEC

    def __init__(self) -> None:
        self.released = threading.Event()

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        self.released.wait(60)
        return Plan(np.zeros((steps, 2)))


def run_with_hang(*, plan_ahead: bool) -> str:
    """Run a real-time session whose planner hangs; `step` returns long before the planner does."""
    planner, config = HangingPlanner(), SessionConfig(rate_hz=50, plan_ahead=plan_ahead)
    try:
        with Session(planner, config, calibration=hostile.CALIBRATION) as session:
            started = time.monotonic()
            for _ in range(5):
                session.step([50.0, 40.0, 1.0])
                time.sleep(0.02)
            took = time.monotonic() - started
        return SURVIVED if took < 10 else f"five steps took {took:.1f} s"
    except Exception as error:
        return f"{type(error).__name__} {error}"
    finally:
        planner.released.set()


EXIT_CODE = """
import os, signal, sys, threading, time
import numpy as np
{prelude}
from nsde_policy.control import Session, SessionConfig
class SlowPlanner:
    def __init__(self, planner): self.spec, self.planner = planner.spec, planner
    def plan_from(self, states, **options):
        planning.set()
        end = time.monotonic() + 2
        while time.monotonic() < end: plan = self.planner.plan_from(states, **options)
        return plan
planning = threading.Event()
config = SessionConfig(plan_ahead={ahead}, deadline_s=0.01, policy_hz=10)
session = Session(SlowPlanner(policy), config, calibration=policy.calibration)
session.step(policy_obs)
assert planning.wait(60)
print("planning", flush=True)
{ending}
"""
TORCH = """
from nsde_policy import Policy
policy, policy_obs = Policy.from_pretrained(), [235.0, 124.0, 299.6, 145.2, 5.378]
"""
NUMPY = """
sys.path.insert(0, "benchmarks")
from attacks import _hostile_session as hostile
policy, policy_obs = hostile.HostileSession(hostile.Settings()), [50.0, 40.0, 1.0]
policy.calibration = hostile.CALIBRATION
"""
ENDINGS = {
    "the end": ("", 0),
    "sys.exit(3)": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('broken')", 1),
    "close, then the end": ("session.close()", 0),
    "os._exit(5)": ("os._exit(5)", 5),
    "Ctrl-C": ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
    "reset, then the end": ("session.reset()", 0),
}


def exit_in_mid_plan(number: int) -> tuple[str, str]:
    """End a program while a plan is being made; it must end in time, with the right exit code."""
    ways = [*ENDINGS.items()]
    name, (ending, wanted) = ways[number % len(ways)]
    prelude = TORCH if number % 4 == number // len(ways) % 4 else NUMPY
    code = EXIT_CODE.format(prelude=prelude, ahead=bool(number // len(ways) % 2), ending=ending)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=EXIT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return name, f"did not end within {EXIT_TIMEOUT_S:g} s"
    if done.returncode == wanted and done.stdout == "planning\n":
        return name, SURVIVED
    return name, f"exit code {done.returncode}, expected {wanted}: {done.stderr[-300:]!r}"
