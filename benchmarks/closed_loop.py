"""The control loop, measured: in real time at several rates, in simulated time at several rates and delays.

    python benchmarks/closed_loop.py realtime [--seconds 60] [--rates 10 50 125 250 1000] [--planner onnx]
    python benchmarks/closed_loop.py rates  [--episodes 100] [--seed-start 200000]
    python benchmarks/closed_loop.py delays [--episodes 100] [--seed-start 100000]

`realtime` plans ahead and runs against the simulated Push-T robot, which moves on whether a command comes or
not. A control period without a command is the policy's fault where there was no plan to follow, or where
`step` itself needed more processor time than a period has. A virtual machine counts as processor time what
its host gave to others, so the same loop also does a chore: plain arithmetic that takes as long as `step`
does, half of the time before it, half of the time after. What happens to the chore as often as to `step` is
the machine's doing. `rates` and `delays` play benchmark episodes in simulated time: what they find does
not depend on the machine. All print a table; --json FILE keeps the figures, beside those of the others
that it holds already.
"""

import argparse
import gc
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nsde_policy.control import Session
from nsde_policy.control.config import SessionConfig
from nsde_policy.control.simulation import DelayedPlanner, SimulatedWorker
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.envs.pusht.robot import SimulatedPushT
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.inference.base import BasePolicy
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Planner

PERIOD = 0.1


@dataclass(frozen=True)
class RealTime:
    rate_hz: float
    seconds: float
    commands: int
    achieved_hz: float
    periods_without_command: int
    no_plan: int
    """Commands held because no plan was there: the policy's fault."""
    slow_steps: int
    """Calls of `step` that took more processor time of their thread than a control period: its fault too."""
    slow_chores: int
    """How often the same happened to the chore, which knows no policy."""
    preempted_steps: int
    """Calls that took longer than a period though not by their own work."""
    preempted_chores: int
    robot_stalls: int
    """How often the simulated robot's own work, its physics and resets, took longer than a period."""
    step_p50_us: float
    step_p99_us: float
    step_cpu_p50_us: float
    step_cpu_p999_us: float
    step_cpu_max_us: float
    chore_cpu_p50_us: float
    chore_cpu_p999_us: float
    chore_cpu_max_us: float
    plan_p50_ms: float
    plan_p99_ms: float
    late_plans: int
    load: float
    """Processes that wanted a core, on average over the last minute."""


class Stopwatch:
    """Wall time and processor time of this thread, call by call, seconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        yield
        self.cpu.append(time.thread_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def slow(self, period_s: float) -> int:
        """Calls that took longer than a period by their own work."""
        return sum(cpu > period_s for cpu in self.cpu)

    def preempted(self, period_s: float) -> int:
        """Calls that took longer than a period, but not by their own work."""
        return sum(wall > period_s >= cpu for wall, cpu in zip(self.wall, self.cpu, strict=True))


class Chore:
    """Plain arithmetic that takes as long as `step` does, as far as medians so far tell."""

    def __init__(self) -> None:
        self.watch, self._size = Stopwatch(), 500

    def do(self, like: Stopwatch) -> None:
        with self.watch.running():
            x = 0.0
            for k in range(self._size):
                x += 0.5 * k
        if len(self.watch.cpu) % 100 == 0 and like.cpu:
            ratio = float(np.median(like.cpu[-100:]) / np.median(self.watch.cpu[-100:]))
            self._size = round(self._size * min(max(ratio, 0.5), 2.0)) + 1


def in_real_time(policy: BasePolicy, rate_hz: float, seconds: float) -> RealTime:
    robot, step, chore, world = SimulatedPushT(), Stopwatch(), Chore(), Stopwatch()
    with policy.session(rate_hz, plan_ahead=True, deadline_s=PERIOD / 2) as session:
        began = episode = time.monotonic()
        for count, tick in enumerate(session.ticks()):
            if tick - began >= seconds:
                break
            with world.running():
                robot.advance(tick - episode - robot.time)
                if robot.ended:
                    robot.reset(seed=count)
                    session.reset()
                    episode = tick
            if count % 2:
                chore.do(step)
            with step.running():
                command = session.step(robot.observe(), min(tick, time.monotonic()))
            robot.send(command)
            if not count % 2:
                chore.do(step)
    report, period = session.report(), 1 / rate_hz
    step_us, chore_us = 1e6 * np.array(step.cpu), 1e6 * np.array(chore.watch.cpu)
    return RealTime(
        rate_hz=rate_hz,
        seconds=seconds,
        commands=report.commands,
        achieved_hz=report.rate_hz,
        periods_without_command=report.skipped_ticks,
        no_plan=report.faults.get("late_plan", 0),
        slow_steps=step.slow(period),
        slow_chores=chore.watch.slow(period),
        preempted_steps=step.preempted(period),
        preempted_chores=chore.watch.preempted(period),
        robot_stalls=sum(wall > period for wall in world.wall),
        step_p50_us=1e6 * float(np.percentile(step.wall, 50)),
        step_p99_us=1e6 * float(np.percentile(step.wall, 99)),
        step_cpu_p50_us=float(np.percentile(step_us, 50)),
        step_cpu_p999_us=float(np.percentile(step_us, 99.9)),
        step_cpu_max_us=float(step_us.max()),
        chore_cpu_p50_us=float(np.percentile(chore_us, 50)),
        chore_cpu_p999_us=float(np.percentile(chore_us, 99.9)),
        chore_cpu_max_us=float(chore_us.max()),
        plan_p50_ms=1e3 * report.latency_p50_s,
        plan_p99_ms=1e3 * report.latency_p99_s,
        late_plans=report.missed_deadlines,
        load=os.getloadavg()[0],
    )


def as_graph(policy: Policy) -> RuntimePolicy:
    """The same policy in onnxruntime, which plans without holding up Python."""
    with tempfile.TemporaryDirectory() as folder:
        export_policy(policy, Path(folder) / "policy.onnx", steps=policy.chunk + 4, cases=16)
        return RuntimePolicy.load(Path(folder) / "policy.onnx")


def play(policy: Policy, seed: int, *, rate_hz: float, delay_s: float, ahead: bool) -> SimulatedPushT:
    """One benchmark episode in simulated time; planning takes `delay_s` and nothing else does."""
    robot = SimulatedPushT()
    robot.reset(seed=seed)

    def clock() -> float:
        return robot.time

    planner: Planner = policy if ahead else DelayedPlanner(policy, delay_s, sleep=robot.advance)
    worker = SimulatedWorker(policy, clock, delay_s=delay_s) if ahead else None
    config = SessionConfig(rate_hz=rate_hz, plan_ahead=ahead, seed=seed)
    session = Session(planner, config, calibration=policy.calibration, clock=clock, worker=worker)
    tick = 0
    while not robot.ended:
        robot.send(session.step(robot.observe(), robot.time))
        tick = max(tick + 1, math.floor(robot.time * rate_hz + 1e-6))
        robot.advance(max(tick / rate_hz - robot.time, 0.0))
    return robot


def row(policy: Policy, seeds: range, **how: Any) -> dict[str, Any]:
    played = [play(policy, seed, **how) for seed in seeds]
    reward, success = (
        mean([r.max_reward for r in played]),
        proportion(sum(r.success for r in played), len(seeds)),
    )
    print(
        f"| {how['rate_hz']:g} | {how['delay_s'] / PERIOD:g} | {'yes' if how['ahead'] else 'no'} "
        f"| {reward} | {success} |",
        flush=True,
    )
    return {
        **how,
        "seeds": [seeds.start, seeds.stop - 1],
        "reward": asdict(reward),
        "success": asdict(success),
        "max_reward": [round(r.max_reward, 5) for r in played],
        "won": [r.success for r in played],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["realtime", "rates", "delays"])
    parser.add_argument("--run", type=Path, default=None, help="run directory; the shipped policy without")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--planner", choices=["torch", "onnx"], default="torch", help="what plans in realtime"
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 50, 125, 250, 1000])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed-start", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy.from_pretrained(args.run)
    rows: list[dict[str, Any]] = []
    if args.what == "realtime":
        planner = as_graph(policy) if args.planner == "onnx" else policy
        began = time.perf_counter()
        gc.collect()
        print(f"a full collection of garbage takes {1e3 * (time.perf_counter() - began):.0f} ms", flush=True)
        for rate in args.rates:
            found = in_real_time(planner, rate, args.seconds)
            rows.append(asdict(found))
            print(found, flush=True)
    else:
        start = args.seed_start or {"rates": 200_000, "delays": 100_000}[args.what]
        seeds = range(start, start + args.episodes)
        print("| rate, Hz | delay, periods | ahead | mean max reward | success |\n|" + 5 * " --- |")
        if args.what == "rates":
            ways = [(rate, 0.0, ahead) for rate in args.rates if rate <= 125 for ahead in (False, True)]
        else:
            ways = [(10.0, 0.0, False)]
            ways += [(10.0, periods * PERIOD, ahead) for periods in (1, 2, 3, 4) for ahead in (True, False)]
        for rate, delay, ahead in ways:
            rows.append(row(policy, seeds, rate_hz=rate, delay_s=delay, ahead=ahead))
    if args.json is not None:
        known = json.loads(args.json.read_text()) if args.json.exists() else {}
        found = {**known, "machine": device_name("cpu"), args.what: rows}
        args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
