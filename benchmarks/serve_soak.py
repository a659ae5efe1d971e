"""Soak test of `nsde-policy serve`: rate, latency, memory and errors under clients without pauses.

    python benchmarks/serve_soak.py                      # 288 000 requests: 8 robots at 10 Hz for an hour
    python benchmarks/serve_soak.py --requests 40000 --clients 8

The server is a separate process; the clients are threads of this one, so on a small machine both compete for
the same cores. Every answer is compared bit for bit with the local policy's for the same states and seed:
actions, predicted states and σ. Progress goes to standard error, a line per hundredth of the work.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from nsde_policy.deploy.client import RemotePolicy
from nsde_policy.errors import NsdePolicyError
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Plan

DIFFERENT_REQUESTS = 64
MARKS = 100
"""Number of measurements of the server's memory."""


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no resident memory")


def make_requests(policy: Policy) -> list[tuple[np.ndarray, int, bytes]]:
    """Make states in the range of the demonstrations, each with a seed and the local policy's answer."""
    rng, spec = np.random.default_rng(0), policy.spec
    asked = []
    for seed in range(DIFFERENT_REQUESTS):
        memory = spec.new_history()
        for _ in range(spec.history):
            memory.add_observation(rng.uniform(spec.low, spec.high)[: spec.obs_dim])
            memory.add_action(rng.uniform(spec.low, spec.high)[spec.obs_dim :])
        states = memory.states()
        asked.append((states, seed, plan_to_bytes(policy.plan_from(states, steps=spec.chunk, seed=seed))))
    return asked


def plan_to_bytes(plan: Plan) -> bytes:
    return b"".join(b"none" if part is None else part.tobytes() for part in plan)


class Client(threading.Thread):
    """Client thread that sends its next request as soon as it has an answer."""

    def __init__(self, url: str, count: int, asked: list[tuple[np.ndarray, int, bytes]]) -> None:
        super().__init__()
        self.latencies_ms = np.zeros(count)
        self.done, self.wrong, self.errors = 0, 0, list[str]()
        self._asked = asked
        self._policy = RemotePolicy.connect(url, deadline_s=5.0, timeout_s=10.0)

    def run(self) -> None:
        with self._policy as policy:
            for k in range(len(self.latencies_ms)):
                states, seed, wanted = self._asked[k % DIFFERENT_REQUESTS]
                began = time.perf_counter()
                try:
                    plan = policy.plan_from(states, steps=policy.spec.chunk, seed=seed)
                    self.wrong += plan_to_bytes(plan) != wanted
                except NsdePolicyError as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                self.latencies_ms[k] = 1e3 * (time.perf_counter() - began)
                self.done += 1


def print_progress(robots: list[Client], total: int, resident: float, seconds: float) -> None:
    done, errors = sum(robot.done for robot in robots), sum(len(robot.errors) for robot in robots)
    wrong = sum(robot.wrong for robot in robots)
    left = (total - done) * seconds / max(done, 1)
    print(
        f"{done}/{total} requests in {seconds:.0f} s, {done / seconds:.1f} per s, about {left:.0f} s left; "
        f"server {resident:.2f} MB; {errors} errors, {wrong} wrong answers",
        file=sys.stderr,
        flush=True,
    )


def soak(requests: int, clients: int, run: Path | None) -> dict[str, object]:
    import torch

    torch.set_num_threads(1)
    asked = make_requests(Policy.from_pretrained(run))
    command = [
        sys.executable,
        "-m",
        "nsde_policy.cli.main",
        "serve",
        "--port",
        "0",
        "--json",
        "--deadline-s",
        "5",
    ]
    command += ["--max-clients", str(max(clients, 32))]
    command += [] if run is None else [str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        robots = [Client(url, requests // clients, asked) for _ in range(clients)]
        warm = robots[0]._policy
        for states, seed, _ in asked:
            warm.plan_from(states, steps=warm.spec.chunk, seed=seed)
        memory, began = [resident_mb(server.pid)], time.perf_counter()
        for robot in robots:
            robot.start()
        total = clients * (requests // clients)
        while any(robot.is_alive() for robot in robots):
            time.sleep(0.2)
            if len(memory) <= MARKS * sum(robot.done for robot in robots) // total:
                memory.append(resident_mb(server.pid))
                print_progress(robots, total, memory[-1], time.perf_counter() - began)
        seconds = time.perf_counter() - began
        memory.append(resident_mb(server.pid))
        server.terminate()
        code = server.wait(30)
    latencies = np.concatenate([robot.latencies_ms for robot in robots])
    errors = [error for robot in robots for error in robot.errors]
    return {
        "requests": total,
        "clients": clients,
        "seconds": round(seconds, 1),
        "requests_per_s": round(total / seconds, 1),
        "p50_ms": round(float(np.percentile(latencies, 50)), 2),
        "p99_ms": round(float(np.percentile(latencies, 99)), 2),
        "max_ms": round(float(latencies.max()), 2),
        "rss_mb_start": round(memory[0], 2),
        "rss_mb_middle": round(memory[len(memory) // 2], 2),
        "rss_mb_end": round(memory[-1], 2),
        "rss_mb": [round(value, 2) for value in memory],
        "errors": len(errors),
        "first_errors": errors[:3],
        "wrong_answers": sum(robot.wrong for robot in robots),
        "exit_code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=288_000, help="of all clients together")
    parser.add_argument("--clients", type=int, default=8, help="connections, one request in flight each")
    parser.add_argument("--run", type=Path, help="run directory; the shipped policy by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    args = parser.parse_args()
    if not 1 <= args.clients <= args.requests:
        parser.error(f"need 1 <= --clients <= --requests, got {args.clients} and {args.requests}")
    found = soak(args.requests, args.clients, args.run)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:<16}{value}")


if __name__ == "__main__":
    main()
