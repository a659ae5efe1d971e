"""Run the control loop of README.md at 10 Hz, idle and beside busy processes, and count late plans.

    python benchmarks/busy_loop.py [--seconds 60] [--json FILE]

The loop is the code block of README.md itself, in a process of its own with torch's default number of
threads; `robot` is the simulated Push-T robot in real time. It runs first alone, then beside twice as many
processes that compute without end as the machine has cores. A plan is late if it arrives after the period
for which it was made, or, without planning ahead (--in-the-loop), after 50 ms. The exit code is 1 if more
than 5 % of the plans beside the load were late.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "examples"))
RATE_HZ = 10.0
MOST_LATE = 0.05
"""Largest share of late plans beside the load."""


class RealTimeRobot:
    """Simulated Push-T robot that the loop of README.md iterates over: one observation per control period."""

    def __init__(self, seconds: float) -> None:
        from simulated_robot import SimulatedPushT

        self._seconds, self._robot = seconds, SimulatedPushT()
        self._robot.reset(seed=200_000)

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        start = time.monotonic()
        for tick in range(round(self._seconds * RATE_HZ)):
            due = start + tick / RATE_HZ
            time.sleep(max(due - time.monotonic(), 0.0))
            now = time.monotonic()
            self._robot.advance(now - start - self._robot.time)
            yield self._robot.observe(), now

    def send(self, command: np.ndarray) -> None:
        """Send a command to the robot."""
        self._robot.send(command)


def read_loop() -> str:
    """Return the code block of README.md that opens a session."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (loop,) = [block for block in blocks if "policy.session(" in block]
    return loop


def run_loop(seconds: float, *, ahead: bool) -> None:
    """Run the loop in this process and print its report as JSON."""
    import torch

    threads = torch.get_num_threads()
    names: dict[str, Any] = {"robot": RealTimeRobot(seconds)}
    exec(read_loop() if ahead else read_loop().replace("plan_ahead=True", "plan_ahead=False"), names)
    report = json.loads(names["session"].report().to_json())
    print(json.dumps(report | {"torch_threads": threads, "load": os.getloadavg()[0]}))


def run_beside(busy: int, seconds: float, *, ahead: bool) -> dict[str, Any]:
    """Run the loop in a new process beside a number of busy processes; return its report."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    with ExitStack() as processes:
        for _ in range(busy):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            processes.callback(process.wait)
            processes.callback(process.kill)
        command = [sys.executable, __file__, "--loop", "--seconds", str(seconds)]
        command += [] if ahead else ["--in-the-loop"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report | {"busy": busy}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each run")
    parser.add_argument("--json", type=Path, default=None, help="write the reports to this file")
    parser.add_argument("--in-the-loop", action="store_true", help="without planning ahead, for comparison")
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.loop:
        run_loop(args.seconds, ahead=not args.in_the_loop)
        return 0
    ahead = not args.in_the_loop
    reports = [run_beside(busy, args.seconds, ahead=ahead) for busy in (0, 2 * (os.cpu_count() or 1))]
    print(
        "| busy processes | commands | held | plans | late | median, ms | p99, ms | load |\n|" + 8 * " --: |"
    )
    for report in reports:
        late = f"{report['missed_deadlines']} ({report['missed_deadlines'] / max(report['plans'], 1):.1%})"
        latency = f"{1e3 * report['latency_p50_s']:.1f} | {1e3 * report['latency_p99_s']:.1f}"
        counts = f"{report['commands']} | {report['held']} | {report['plans']} | {late}"
        print(f"| {report['busy']} | {counts} | {latency} | {report['load']:.1f} |")
    idle, busy = reports
    print(f"median beside the load: {busy['latency_p50_s'] / idle['latency_p50_s']:.2f} times the idle one")
    if args.json:
        args.json.write_text(json.dumps(reports, indent=1) + "\n")
    return 1 if busy["missed_deadlines"] > MOST_LATE * busy["plans"] else 0


if __name__ == "__main__":
    sys.exit(main())
