"""Measure speed and memory, one named case at a time: the figures of docs/results/speed.md.

    python benchmarks/speed.py                                  # the cases
    python benchmarks/speed.py latency --json out/latency.json
    python benchmarks/speed.py robots --seconds 8

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
    "methods": ("methods", "eight actions of every method"),
    "latency": (
        "latency",
        "eight actions of the shipped policy or --run, against Diffusion Policy",
    ),
    "training": ("training", "time and memory of training by the size of the state and of the data"),
    "short": ("short_training", "a short training on Push-T, from the start of the program, and its score"),
    "loop": ("loops", "a session at several rates in real time"),
    "robots": ("robots", "--robots at --rate over websockets; without a number, how many the server holds"),
}
"""Module of `timing` with the function `measure_CASE`, and what it measures."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("case", nargs="?", choices=[*CASES])
    add("--json", type=Path, help="also write the figures to this file")
    add("--run", type=Path, help="run directory; default: the shipped policy")
    add("--demos", type=Path, help="human demonstrations of Push-T; default: those of the package")
    add("--device", default="cpu")
    add("--rounds", type=int, default=30, help="turns of each contender")
    add("--seconds", type=float, default=20.0, help="length of each phase")
    add("--robots", type=int, help="simulated robots; default: search the largest number in time")
    add("--rate", type=float, default=10.0, help="plans per second of each robot")
    add("--deadline", type=float, default=0.05, help="deadline of a plan, seconds")
    add("--smoke", action="store_true", help="a tiny measurement, to see that it works")
    args = parser.parse_args()
    if args.case is None:
        print("\n".join(f"{name:10} {what}" for name, (_, what) in CASES.items()))
        return
    measure: Callable[[Options], list[dict[str, Any]]] = getattr(
        import_module(f"timing.{CASES[args.case][0]}"), f"measure_{args.case}"
    )
    rows = measure(args)
    print_rows(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
