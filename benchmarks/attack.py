"""Attack the package and print a table for each target: tried, refused, survived, bugs.

    python benchmarks/attack.py                             # all targets, two minutes each
    python benchmarks/attack.py --target sessions files     # two targets
    python benchmarks/attack.py --seconds 20 --seed 7       # less time, other attempts

Targets are the modules of `benchmarks/attacks` without an underscore. Each has a function
`run(seconds, seed) -> Result` that tries attacks for about that long, in a process of its own. A target that
takes much longer is ended and counts as a bug. The exit code is 1 if there is a bug.
"""

import argparse
import importlib
import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from attacks.result import Result  # noqa: E402

TARGETS = sorted(path.stem for path in HERE.glob("attacks/[a-z]*.py") if path.stem != "result")
PREPARATION_S = 600.0
"""Seconds that a target may take in addition, to import, to train a small policy and to end."""


def run_target(name: str, seconds: float, seed: int) -> Result:
    """Run a target in a process of its own; return its result, or a bug if it raises or does not end."""
    failed = Result()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, name, seconds, seed))
    process.start()
    theirs.close()
    try:
        if ours.poll(seconds + PREPARATION_S):
            return ours.recv()
        failed.count(name, f"not finished after {seconds + PREPARATION_S:.0f} s", "the target")
    except EOFError:
        process.join()
        failed.count(name, f"ended with exit code {process.exitcode}", "the target")
    finally:
        process.kill()
        process.join()
    return failed


def _work(connection: "multiprocessing.connection.Connection", name: str, seconds: float, seed: int) -> None:
    connection.send(importlib.import_module(f"attacks.{name}").run(seconds, seed))


def print_table(result: Result) -> None:
    """Print a Markdown table of the counts, then every bug."""
    print("| attack | tried | refused | survived | bugs |\n| --- | --: | --: | --: | --: |")
    for name, row in result.rows.items():
        counts = (row.refused + row.survived + len(row.bugs), row.refused, row.survived, len(row.bugs))
        print(f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    for name, row in result.rows.items():
        for bug in row.bugs:
            print(f"BUG {name}: {bug}")
    sys.stdout.flush()


def main() -> int:
    """Run the targets and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=TARGETS, metavar="NAME",
                        help=f"default: all of {', '.join(TARGETS)}")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=120.0, help="time for each target, default 120")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the counts to this file")
    args = parser.parse_args()
    result = Result()
    for target in args.target:
        start = time.monotonic()
        found = run_target(target, args.seconds, args.seed)
        print_table(found)
        print(f"{target}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        result.rows.update(found.rows)
    if args.json:
        args.json.write_text(json.dumps(asdict(result), indent=1) + "\n")
    return 1 if any(row.bugs for row in result.rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
