"""Speed of environments, and of control loops in real time."""

import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from timing.common import ROOT, Options

sys.path.append(str(ROOT / "examples"))
RATES = (10, 50, 125, 250, 1000)
# Runs in both Pythons: the arguments name the package to import and the environment to make.
STEPS = """
import importlib, sys, time
import gymnasium, numpy
module, env_id, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
importlib.import_module(module)
env = gymnasium.make(env_id, disable_env_checker=True)
rng = numpy.random.default_rng(0)
if "Avoiding" in env_id:  # changes of the command that lead up the table
    targets = rng.normal((0, 0.006), 0.004, (steps, 2))
else:  # targets that wander over the block's part of the table, as a pushing agent's do
    targets = numpy.clip(256 + numpy.cumsum(rng.normal(0, 25, (steps, 2)), 0) % 300 - 150, 0, 512)
env.reset(seed=100000)
start = time.process_time()
for i in range(steps):
    _, _, terminated, truncated, _ = env.step(targets[i])
    if terminated or truncated:
        env.reset(seed=100000 + i)
print(steps / (time.process_time() - start))
"""


def measure_env(options: Options) -> list[dict[str, Any]]:
    """Count control steps per second of processor time, one process each, in turns."""
    steps, rounds = (200, 1) if options.smoke else (20_000, 9)
    contenders = {
        "Avoiding": (sys.executable, "nsde_policy.envs", "nsde_policy/Avoiding-v0", steps),
        "Push-T": (sys.executable, "nsde_policy.envs", "nsde_policy/PushT-v0", steps),
    }
    if options.gym_pusht:
        contenders["gym-pusht"] = (options.gym_pusht, "gym_pusht", "gym_pusht/PushT-v0", steps // 5)
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (python, module, env_id, count) in contenders.items():
            command = [python, "-c", STEPS, module, env_id, str(count)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            speeds[name].append(float(done.stdout.split()[-1]))
    slow = speeds.get("gym-pusht", speeds["Push-T"])
    return [
        {
            "environment": name,
            "steps_per_s": statistics.median(found),
            "times_the_last_row": statistics.median(a / b for a, b in zip(found, slow, strict=True)),
        }
        for name, found in speeds.items()
    ]


def measure_loop(options: Options) -> list[dict[str, Any]]:
    """Run a session that plans ahead with a simulated Push-T robot, which does not wait for commands.

    A period without a command is the policy's fault if there was no plan, or if `step` needed more processor
    time than a period. On a virtual machine, processor time includes time that its host gave to others.
    """
    import torch

    from nsde_policy.inference.policy import Policy

    torch.set_num_threads(1)
    policy = Policy.from_pretrained(options.run)
    seconds = 1.0 if options.smoke else options.seconds
    return [_run_in_real_time(policy, rate, seconds) for rate in (RATES[:1] if options.smoke else RATES)]


def _run_in_real_time(policy: Any, rate_hz: float, seconds: float) -> dict[str, Any]:
    from simulated_robot import SimulatedPushT

    robot, wall, cpu = SimulatedPushT(), list[float](), list[float]()
    with policy.session(rate_hz, plan_ahead=True, deadline_s=0.05) as session:
        began = episode = time.monotonic()
        for count, tick in enumerate(session.ticks()):
            if tick - began >= seconds:
                break
            robot.advance(tick - episode - robot.time)
            if robot.ended:
                robot.reset(seed=count)
                session.reset(robot.observe()[:2])  # the agent is elsewhere, at rest
                episode = tick
            started, used = time.perf_counter(), time.thread_time()
            command = session.step(robot.observe(), min(tick, time.monotonic()))
            cpu.append(time.thread_time() - used)
            wall.append(time.perf_counter() - started)
            robot.send(command)
    report = session.report()
    return {
        "rate_hz": rate_hz,
        "commands": report.commands,
        "periods_without_command": report.skipped_ticks,
        "no_plan": report.faults.get("late_plan", 0),
        "late_plans": report.missed_deadlines,
        "slow_steps": sum(used > 1 / rate_hz for used in cpu),
        "step_p50_us": 1e6 * float(np.percentile(wall, 50)),
        "step_p99_us": 1e6 * float(np.percentile(wall, 99)),
        "plan_p50_ms": 1e3 * report.latency_p50_s,
        "plan_p99_ms": 1e3 * report.latency_p99_s,
        "load": os.getloadavg()[0],
    }
