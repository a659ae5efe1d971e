"""Attack control sessions with hostile planners, workers, callbacks, clocks and observations, and exits."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attacks import _hostile_session as hostile
from attacks.result import AttackResult
from nsde_policy.control import Session, SessionConfig
from nsde_policy.inference.spec import Plan

ROOT = Path(__file__).parents[2]
COMMANDS, HANGS, EXITS = 100_000, 20, 16
COMMANDS_PER_SESSION = 40
EXIT_TIMEOUT_S = 60.0


def run(scale: float, seed: int) -> Iterator[AttackResult]:
    """Attack sessions, planners that hang, and programs that exit while a plan is being made."""
    yield attack_commands(round(scale * COMMANDS) or 1, seed)
    yield attack_with_hangs(round(scale * HANGS) or 1)
    yield attack_exits(round(scale * EXITS) or 1)


def attack_commands(commands: int, seed: int) -> AttackResult:
    """Ask hostile sessions for commands; each is refused as documented, or sent and within the contract."""
    result, number = AttackResult("sessions: commands"), 0
    while result.tried < commands:
        rng = random.Random(f"{seed} {number}")
        session = hostile.HostileSession(draw_settings(rng))
        try:
            for _ in range(COMMANDS_PER_SESSION):
                attack_once(session, rng)
        except Exception as error:
            result.bugs.append(f"session {seed} {number}: {type(error).__name__} {error!s:.200}")
        result.survived += session.commands
        result.refused += session.refused
        number += 1
    return result


def draw_settings(rng: random.Random) -> hostile.Settings:
    """Draw the settings of a session: some have a camera, and some send changes instead of positions."""
    deltas = rng.random() < 0.2
    return hostile.Settings(
        rate_hz=10.0 if deltas else rng.choice([10.0, 10.0, 20.0, 50.0, 125.0]),
        blend=rng.choice([0.0, 2.0]),
        plan_ahead=rng.random() < 0.5,
        on_fault=rng.choice([0, 0, 1, 2, 2, 3, 4]),
        starts_at=rng.choice([None, hostile.START, (1e9, -1e9)]),
        jerk=rng.choice([None, None, 3e3, 1e5]),
        worker=rng.choice(hostile.WORKERS[:2]),
        cameras=rng.random() < 0.4,
        deltas=deltas,
    )


def attack_once(session: hostile.HostileSession, rng: random.Random) -> None:
    """Change one thing at random, then ask for a command."""
    tick, now = 1 / session.settings.rate_hz, session.true_time
    match rng.randrange(10):
        case 0:
            session.plan = rng.choice(hostile.PLANS)
        case 1:
            session.answer = rng.choice([*hostile.VALUES, hostile.REENTER, hostile.RESET])
        case 2:
            session.worker = rng.choice(hostile.WORKERS)
        case 3:
            session.reset(rng.choice([None, None, hostile.START, (0.0, 100.0)]))
        case 4 | 5:
            session.plan, session.worker = hostile.WALK, session.settings.worker
    session.true_time = now = now + tick * rng.choice(hostile.SHIFTS)
    session.now = now
    if rng.random() < 0.15:
        session.now = rng.choice([*hostile.TIMES, (now, now - tick), (now, now + 5 * tick), (now, "late")])
    t = rng.choice([None, None, now, now, now - tick, now + tick, *hostile.VALUES[:4], hostile.Evil()])
    if rng.random() < 0.15:
        session.action_at(t)
    else:
        obs: Any = [rng.uniform(0, 100), rng.uniform(0, 100), rng.uniform(0, 6)]
        if session.settings.cameras:
            obs, t = draw_frame(session, rng, obs, t)
        session.step(rng.choice(hostile.VALUES) if rng.random() < 0.3 else obs, t)


def draw_frame(session: hostile.HostileSession, rng: random.Random, obs: list[float], t: Any) -> Any:
    """Add a frame to an observation, and sometimes its time stamp; both and its codes may be anything."""
    session.codes = [0.1, -0.1] if rng.random() < 0.9 else rng.choice(hostile.VALUES)
    frame = hostile.FRAME if rng.random() < 0.7 else rng.choice(hostile.FRAMES)
    if rng.random() < 0.3:
        t = session.true_time if t is None else t
        t = {hostile.STATE: t, hostile.CAMERA: rng.choice([t, hostile.Evil(), 1e308])}
    return {hostile.STATE: obs, hostile.CAMERA: frame}, t


class HangingPlanner:
    """Planner that does not return until it is released."""

    spec = hostile.SPEC

    def __init__(self) -> None:
        self.released = threading.Event()

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        self.released.wait(60)
        return Plan(np.zeros((steps, 2)))


def attack_with_hangs(count: int) -> AttackResult:
    """Run real-time sessions whose planner hangs; `step` returns long before the planner does."""
    result = AttackResult("sessions: planner hangs")
    for number in range(count):
        planner, config = HangingPlanner(), SessionConfig(rate_hz=50, plan_ahead=bool(number % 2))
        try:
            with Session(planner, config, calibration=hostile.CALIBRATION) as session:
                started = time.monotonic()
                for _ in range(5):
                    session.step([50.0, 40.0, 1.0])
                    time.sleep(0.02)
                took = time.monotonic() - started
            if took < 5:
                result.survived += 1
            else:
                result.bugs.append(f"hang {number}: five steps took {took:.1f} s")
        except Exception as error:
            result.bugs.append(f"hang {number}: {type(error).__name__} {error}")
        finally:
            planner.released.set()
    return result


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


def attack_exits(count: int) -> AttackResult:
    """End programs while a plan is being made; they must end in time, with the right exit code."""
    result, ways = AttackResult("sessions: exit in mid-plan"), [*ENDINGS.items()]
    for number in range(count):
        name, (ending, wanted) = ways[number % len(ways)]
        prelude = TORCH if number % 4 == number // len(ways) % 4 else NUMPY
        code = EXIT_CODE.format(prelude=prelude, ahead=bool(number // len(ways) % 2), ending=ending)
        try:
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=EXIT_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            result.bugs.append(f"exit by {name}: did not end within {EXIT_TIMEOUT_S:g} s")
            continue
        if done.returncode == wanted and done.stdout == "planning\n":
            result.survived += 1
        else:
            found = f"exit code {done.returncode}, expected {wanted}: {done.stderr[-300:]!r}"
            result.bugs.append(f"exit by {name}: {found}")
    return result
