"""Fairness of `nsde-policy serve`: a robot with a deadline, alone and beside greedy clients, in one run.

    python benchmarks/serve_fairness.py                  # 4 greedy clients, 2 minutes
    python benchmarks/serve_fairness.py --json benchmarks/results/serve_fairness.json

The robot asks for a chunk ten times a second and needs it within 50 ms. The greedy clients, threads of one
other process, ask again as soon as they have an answer. Phases with and without them alternate, so that other
load of the machine falls on both. The ratio is the robot's share of plans in time beside the greedy clients,
divided by its share alone; the target is 0.9.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import threading
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.errors import RemoteError

RATE_HZ, DEADLINE_S = 10.0, 0.05
TARGET = 0.9
LONG_PLAN = 128
"""Actions of the plans that the greedy clients of the second demand ask for."""


def make_states(policy: RemotePolicy) -> np.ndarray:
    memory, spec = policy.spec.new_history(), policy.spec
    memory.add_observation((np.array(spec.low) + np.array(spec.high))[: spec.obs_dim] / 2)
    return memory.states()


def ask_greedily(
    url: str, steps: int, clients: int, active: Event, done: Event, results: "Queue[tuple[int, int]]"
) -> None:
    """Ask for plans without a pause while `active` is set; run in a process of its own."""

    def ask(number: int) -> None:
        answered = refused = 0
        with RemotePolicy.connect(url, deadline_s=5.0, timeout_s=10.0) as policy:
            states = make_states(policy)
            while not done.is_set():
                if not active.wait(0.1):
                    continue
                try:
                    policy.plan_from(states, steps=steps, seed=number)
                    answered += 1
                except RemoteError:
                    refused += 1
        results.put((answered, refused))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def control(policy: RemotePolicy, states: np.ndarray, seconds: float) -> list[float]:
    """Ask at the robot's rate; return the time of each plan in milliseconds, infinite if there was none."""
    found, due = [], time.monotonic()
    for seed in range(round(seconds * RATE_HZ)):
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic()) + 1 / RATE_HZ
        asked = time.perf_counter()
        try:
            policy.plan_from(states, steps=policy.spec.chunk, seed=seed)
            found.append(1e3 * (time.perf_counter() - asked))
        except RemoteError:
            found.append(float("inf"))
    return found


def summarize(times_ms: list[float]) -> dict[str, float | int]:
    arrived = [t for t in times_ms if t < float("inf")] or [float("nan")]
    return {
        "asked": len(times_ms),
        "in_time": sum(t <= 1e3 * DEADLINE_S for t in times_ms),
        "p50_ms": round(float(np.percentile(arrived, 50)), 1),
        "p99_ms": round(float(np.percentile(arrived, 99)), 1),
    }


def measure(url: str, steps: int, args: argparse.Namespace) -> dict[str, object]:
    """Alternate phases alone and beside greedy clients that ask for plans of `steps` actions."""
    context = multiprocessing.get_context("spawn")
    active, done = context.Event(), context.Event()
    counts: Queue[tuple[int, int]] = context.Queue()
    with RemotePolicy.connect(url, deadline_s=DEADLINE_S) as robot:
        greedy = context.Process(target=ask_greedily, args=(url, steps, args.greedy, active, done, counts))
        greedy.start()
        states, times = make_states(robot), {False: list[float](), True: list[float]()}
        control(robot, states, 3.0)
        for _ in range(args.rounds):
            for beside in (False, True):
                (active.set if beside else active.clear)()
                time.sleep(0.3)
                times[beside] += control(robot, states, args.seconds)
        active.clear()
        done.set()
        answered, refused = np.sum([counts.get(timeout=30) for _ in range(args.greedy)], axis=0).tolist()
        greedy.join()
    alone, beside_them = summarize(times[False]), summarize(times[True])
    ratio = beside_them["in_time"] / max(alone["in_time"], 1)
    return {
        "greedy_steps": steps,
        "alone": alone,
        "beside": beside_them,
        "greedy_plans": answered,
        "greedy_refused": refused,
        "ratio": round(ratio, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--greedy", type=int, default=4, help="number of greedy clients")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of phases")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one phase")
    parser.add_argument("--max-steps", type=int, help="of the server; default: its own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    args = parser.parse_args()
    command = [sys.executable, "-m", "nsde_policy.cli.main", "serve", "--port", "0", "--json"]
    command += [] if args.max_steps is None else ["--max-steps", str(args.max_steps)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            with RemotePolicy.connect(url) as policy:
                longest = policy.spec.longest_chunk
            results = [measure(url, steps, args) for steps in dict.fromkeys((longest, LONG_PLAN))]
        finally:
            server.terminate()
    print(
        "| greedy clients ask for | robot alone, in time | beside them, in time | p99 alone, beside | ratio |"
    )
    print("| --- | --: | --: | --: | --: |")
    for found in results:
        alone, beside = found["alone"], found["beside"]
        print(
            f"| {found['greedy_steps']} actions | {alone['in_time']} of {alone['asked']} "
            f"| {beside['in_time']} of {beside['asked']} | {alone['p99_ms']}, {beside['p99_ms']} ms "
            f"| {found['ratio']} |"
        )
    if args.json:
        args.json.write_text(json.dumps({"greedy": args.greedy, "results": results}, indent=1) + "\n")
    return 0 if all(found["ratio"] >= TARGET for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
