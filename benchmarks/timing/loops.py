"""Control loops in real time."""

import os
import sys
import time
from typing import Any

import numpy as np

from timing.common import ROOT, Options

sys.path.append(str(ROOT / "examples"))
RATES = (10, 50, 125, 250, 1000)


def measure_loop(options: Options) -> list[dict[str, Any]]:
    """Run a session that plans ahead with a simulated Push-T robot, which does not wait for commands.

    A period without a command is the policy's fault if there was no plan, or if `step` needed more processor
    time than a period. On a virtual machine, processor time includes time that its host gave to others.
    """
    import torch

    from nsde_policy.policy.policy import Policy

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
