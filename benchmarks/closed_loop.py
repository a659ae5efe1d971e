"""Benchmark of the control loop: in real time at several rates, in simulated time with several delays.

    python benchmarks/closed_loop.py realtime [--seconds 60] [--rates 10 50 125 250 1000] [--planner onnx]
    python benchmarks/closed_loop.py rates  [--episodes 100] [--seed-start 200000]
    python benchmarks/closed_loop.py delays [--episodes 100] [--seed-start 100000]
    python benchmarks/closed_loop.py jerk   [--episodes 50] [--seed-start 200000]

`realtime` plans ahead and drives the simulated Push-T robot, which does not wait for commands. A control
period without a command is the policy's fault if there was no plan to follow, or if `step` needed more
processor time than a period has. A virtual machine also counts time that its host gave to others, so the
loop runs a reference computation as well: plain arithmetic that takes as long as `step`, alternately before
and after it. Delays that affect it as often as `step` come from the machine. `rates` and `delays` play
benchmark episodes in simulated time, so their results do not depend on the machine. `jerk` plays them with
and without a jerk limit, the 0.999 quantile of the embedded demonstrations, and prints the largest jerk of
the commands around joins of plans and elsewhere. All print a table; --json FILE adds the results to a file.
"""

import argparse
import gc
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from simulated_time import DelayedPlanner, SimulatedWorker

from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.control import Session, SessionConfig
from nsde_policy.data import load_demonstrations
from nsde_policy.deploy.export import export_policy
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.inference.base import BasePolicy
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Planner

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from simulated_robot import SimulatedPushT

PERIOD = 0.1


@dataclass(frozen=True)
class RealTime:
    rate_hz: float
    seconds: float
    commands: int
    achieved_hz: float
    periods_without_command: int
    no_plan: int
    """Commands that held because there was no plan: the policy's fault."""
    slow_steps: int
    """Calls of `step` that took more processor time than a control period: also the policy's fault."""
    slow_chores: int
    """The same of the reference computation, which does not depend on the policy."""
    preempted_steps: int
    """Calls that took longer than a period, but less processor time."""
    preempted_chores: int
    robot_stalls: int
    """How often physics and resets of the simulated robot took longer than a period."""
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
    """Load average of the last minute."""


class Stopwatch:
    """Wall time and processor time of each call in this thread, seconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    @contextmanager
    def measure(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        yield
        self.cpu.append(time.thread_time() - cpu)
        self.wall.append(time.perf_counter() - wall)

    def count_slow(self, period_s: float) -> int:
        """Count calls that took more processor time than a period."""
        return sum(cpu > period_s for cpu in self.cpu)

    def count_preempted(self, period_s: float) -> int:
        """Count calls that took longer than a period, but less processor time."""
        return sum(wall > period_s >= cpu for wall, cpu in zip(self.wall, self.cpu, strict=True))


class Reference:
    """Plain arithmetic that takes as long as the median `step`."""

    def __init__(self) -> None:
        self.watch, self._size = Stopwatch(), 500

    def run(self, like: Stopwatch) -> None:
        with self.watch.measure():
            x = 0.0
            for k in range(self._size):
                x += 0.5 * k
        if len(self.watch.cpu) % 100 == 0 and like.cpu:
            ratio = float(np.median(like.cpu[-100:]) / np.median(self.watch.cpu[-100:]))
            self._size = round(self._size * min(max(ratio, 0.5), 2.0)) + 1


def run_in_real_time(policy: BasePolicy, rate_hz: float, seconds: float) -> RealTime:
    robot, step, reference, physics = SimulatedPushT(), Stopwatch(), Reference(), Stopwatch()
    with policy.session(rate_hz, plan_ahead=True, deadline_s=PERIOD / 2) as session:
        began = episode = time.monotonic()
        for count, tick in enumerate(session.ticks()):
            if tick - began >= seconds:
                break
            with physics.measure():
                robot.advance(tick - episode - robot.time)
                if robot.ended:
                    robot.reset(seed=count)
                    session.reset(robot.observe()[:2])  # the agent is elsewhere, at rest
                    episode = tick
            if count % 2:
                reference.run(step)
            with step.measure():
                command = session.step(robot.observe(), min(tick, time.monotonic()))
            robot.send(command)
            if not count % 2:
                reference.run(step)
    report, period = session.report(), 1 / rate_hz
    step_us, reference_us = 1e6 * np.array(step.cpu), 1e6 * np.array(reference.watch.cpu)
    return RealTime(
        rate_hz=rate_hz,
        seconds=seconds,
        commands=report.commands,
        achieved_hz=report.rate_hz,
        periods_without_command=report.skipped_ticks,
        no_plan=report.faults.get("late_plan", 0),
        slow_steps=step.count_slow(period),
        slow_chores=reference.watch.count_slow(period),
        preempted_steps=step.count_preempted(period),
        preempted_chores=reference.watch.count_preempted(period),
        robot_stalls=sum(wall > period for wall in physics.wall),
        step_p50_us=1e6 * float(np.percentile(step.wall, 50)),
        step_p99_us=1e6 * float(np.percentile(step.wall, 99)),
        step_cpu_p50_us=float(np.percentile(step_us, 50)),
        step_cpu_p999_us=float(np.percentile(step_us, 99.9)),
        step_cpu_max_us=float(step_us.max()),
        chore_cpu_p50_us=float(np.percentile(reference_us, 50)),
        chore_cpu_p999_us=float(np.percentile(reference_us, 99.9)),
        chore_cpu_max_us=float(reference_us.max()),
        plan_p50_ms=1e3 * report.latency_p50_s,
        plan_p99_ms=1e3 * report.latency_p99_s,
        late_plans=report.missed_deadlines,
        load=os.getloadavg()[0],
    )


def export_to_onnx(policy: Policy) -> RuntimePolicy:
    """Export the policy to onnxruntime, which plans without holding Python's interpreter lock."""
    with tempfile.TemporaryDirectory() as folder:
        export_policy(policy, Path(folder) / "policy.onnx", steps=policy.chunk + 4, cases=16)
        return RuntimePolicy.load(Path(folder) / "policy.onnx")


def play(policy: Policy, seed: int, *, rate_hz: float, delay_s: float, ahead: bool) -> SimulatedPushT:
    """Play a benchmark episode in simulated time; planning takes `delay_s`, everything else no time."""
    robot = SimulatedPushT()
    robot.reset(seed=seed)

    def clock() -> float:
        return robot.time

    planner: Planner = policy if ahead else DelayedPlanner(policy, delay_s, sleep=robot.advance)
    worker = SimulatedWorker(clock, delay_s=delay_s) if ahead else None
    config = SessionConfig(rate_hz=rate_hz, plan_ahead=ahead, seed=seed)
    session = Session(planner, config, calibration=policy.calibration, clock=clock, worker=worker)
    tick = 0
    while not robot.ended:
        robot.send(session.step(robot.observe(), robot.time))
        tick = max(tick + 1, math.floor(robot.time * rate_hz + 1e-6))
        robot.advance(max(tick / rate_hz - robot.time, 0.0))
    return robot


def play_all(policy: Policy, seeds: range, **how: Any) -> dict[str, Any]:
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


@dataclass
class JerkRun:
    """Commands of episodes, the plan that each follows, and the results."""

    jerk_at_joins: float = 0.0
    """Largest jerk of four commands that follow two plans, as a fraction of the limit."""
    jerk_elsewhere: float = 0.0
    joins: int = 0
    rewards: list[float] = field(default_factory=list)
    wins: int = 0


def measure_demo_jerk() -> np.ndarray:
    """Return the 0.999 quantile of the jerk of the embedded demonstrations, px/s³, (2,)."""
    demos = load_demonstrations(EMBEDDED_DEMOS)
    ends = demos.episode_ends.tolist()
    parts = [demos.act[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    jerk = np.concatenate([np.abs(np.diff(part, n=3, axis=0)) for part in parts if len(part) > 3])
    quantile: np.ndarray = np.quantile(jerk, 0.999, axis=0) / PERIOD**3
    return quantile


def play_with_jerk(
    policy: Policy, seed: int, rate_hz: float, limit: np.ndarray | None, unit: np.ndarray
) -> JerkRun:
    """Play an episode in simulated time and measure the jerk of its commands as a fraction of `unit`."""
    robot, commands, plans = SimulatedPushT(), [], []
    robot.reset(seed=seed)
    config = SessionConfig(rate_hz=rate_hz, seed=seed, jerk_limit=limit)
    session = Session(policy, config, calibration=policy.calibration, clock=lambda: robot.time)
    while not robot.ended:
        robot.send(session.step(robot.observe(), robot.time))
        assert session.last is not None
        commands.append(session.last.action)
        plans.append(-1 if session.last.plan is None else session.last.plan)
        robot.advance(len(commands) / rate_hz - robot.time)
    session.close()
    found = JerkRun(rewards=[robot.max_reward], wins=int(robot.success))
    if len(commands) > 3:
        share = (np.abs(np.diff(commands, n=3, axis=0)) * rate_hz**3 / unit).max(axis=1)
        at_join = np.array([len(set(plans[k : k + 4])) > 1 for k in range(len(share))])
        found.joins = int(at_join.sum())
        found.jerk_at_joins = float(share[at_join].max(initial=0.0))
        found.jerk_elsewhere = float(share[~at_join].max(initial=0.0))
    return found


def compare_jerk(policy: Policy, seeds: range, rates: list[float]) -> list[dict[str, Any]]:
    """Play episodes with and without the jerk limit at several rates, and print a table."""
    limit, rows = measure_demo_jerk(), []
    print(f"limit: {limit[0]:.0f} and {limit[1]:.0f} px/s³")
    print(
        "| rate, Hz | limit | largest jerk at joins | elsewhere | mean max reward | success |\n|"
        + 6 * " --- |"
    )
    for rate in [rate for rate in rates if rate <= 125]:
        for given in (None, limit):
            runs = [play_with_jerk(policy, seed, rate, given, limit) for seed in seeds]
            reward = mean([run.rewards[0] for run in runs])
            success = proportion(sum(run.wins for run in runs), len(runs))
            joins = max(run.jerk_at_joins for run in runs)
            elsewhere = max(run.jerk_elsewhere for run in runs)
            print(
                f"| {rate:g} | {'no' if given is None else 'yes'} | {joins:.3f} | {elsewhere:.3f} "
                f"| {reward} | {success} |",
                flush=True,
            )
            rows.append(
                {
                    "rate_hz": rate,
                    "limit": None if given is None else limit.tolist(),
                    "seeds": [seeds.start, seeds.stop - 1],
                    "jerk_at_joins": joins,
                    "jerk_elsewhere": elsewhere,
                    "reward": asdict(reward),
                    "success": asdict(success),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["realtime", "rates", "delays", "jerk"])
    parser.add_argument("--run", type=Path, default=None, help="run directory; by default the shipped policy")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--planner", choices=["torch", "onnx"], default="torch", help="runtime of the policy, for realtime"
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
        planner = export_to_onnx(policy) if args.planner == "onnx" else policy
        began = time.perf_counter()
        gc.collect()
        print(f"a full garbage collection takes {1e3 * (time.perf_counter() - began):.0f} ms", flush=True)
        for rate in args.rates:
            found = run_in_real_time(planner, rate, args.seconds)
            rows.append(asdict(found))
            print(found, flush=True)
    elif args.what == "jerk":
        start = args.seed_start or 200_000
        rows = compare_jerk(policy, range(start, start + args.episodes), args.rates)
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
            rows.append(play_all(policy, seeds, rate_hz=rate, delay_s=delay, ahead=ahead))
    if args.json is not None:
        known = json.loads(args.json.read_text()) if args.json.exists() else {}
        found = {**known, "machine": device_name("cpu"), args.what: rows}
        args.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
