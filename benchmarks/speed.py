"""Measure speed and memory, one named case at a time: the figures of docs/results/speed.md.

    python benchmarks/speed.py                                  # the cases
    python benchmarks/speed.py latency --json out/latency.json
    python benchmarks/speed.py serve --seconds 60

Contenders of a case take turns, so that other load of the machine falls on all of them. Compare figures of
one run with each other, not with those of another machine.
"""

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from timing.common import Options, print_rows

CASES = {
    "methods": "eight actions of every method",
    "latency": "eight actions of the shipped policy, against Diffusion Policy (--run: one with cameras)",
    "sde": "sampling of an SDE with a network, against torchsde",
    "training": "time and memory of training by the size of the state and the number of recorded steps",
    "frames": "memory of training with camera frames by their number",
    "env": "control steps per second of the environments (--gym-pusht: against gym-pusht)",
    "loop": "a session at several rates in real time",
    "serve": "--requests of eight clients to the policy server, without a pause",
    "viewer": "the live page with 0, 1 and 10 viewers (needs Chromium)",
    "report": "a report of 4 runs × 200 episodes in a browser (needs Chromium)",
}
"""What each case measures; its function has the same name, in a module of `timing`."""
MODULES = {
    "methods": "methods",
    "latency": "latency",
    "sde": "training",
    "training": "training",
    "frames": "training",
    "env": "loops",
    "loop": "loops",
    "serve": "servers",
    "viewer": "servers",
    "report": "servers",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("case", nargs="?", choices=[*CASES])
    add("--json", type=Path, help="also write the figures to this file")
    add("--run", type=Path, help="run directory; default: the shipped policy")
    add("--device", default="cpu")
    add("--rounds", type=int, default=30, help="turns of each contender")
    add("--seconds", type=float, default=20.0, help="length of each phase")
    add("--requests", type=int, default=20_000, help="requests of all clients together")
    add("--gym-pusht", help="Python of an environment that has gym-pusht 0.1.8 and pymunk < 7")
    add("--smoke", action="store_true", help="a tiny measurement, to see that it works")
    args = parser.parse_args()
    if args.case is None:
        print("\n".join(f"{name:10} {what}" for name, what in CASES.items()))
        return
    options = Options(
        args.run, args.device, args.rounds, args.seconds, args.requests, args.gym_pusht, args.smoke
    )
    measure: Callable[[Options], list[dict[str, Any]]] = getattr(
        import_module(f"timing.{MODULES[args.case]}"), f"measure_{args.case}"
    )
    rows = measure(options)
    print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
