"""Attack the package and print one table: tried, refused, survived, bugs.

    python benchmarks/attack.py                          # everything, in about half an hour on two cores
    python benchmarks/attack.py sessions files           # two targets
    python benchmarks/attack.py --scale 0.01             # a hundredth of the attempts
    python benchmarks/attack.py --json attack.json

Targets are the modules of `benchmarks/attacks`; each has a function `run(scale, seed)` that yields an
`AttackResult` per row. The exit code is 1 if an attack found a bug.
"""

import argparse
import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from attacks.result import AttackResult

TARGETS = sorted(
    path.stem for path in Path(__file__).with_name("attacks").glob("[a-z]*.py") if path.stem != "result"
)


def print_table(results: list[AttackResult]) -> None:
    """Print a Markdown table of the counts, then every bug."""
    print("| attack | tried | refused | survived | bugs |\n| --- | --: | --: | --: | --: |")
    for result in results:
        counts = (result.tried, result.refused, result.survived, len(result.bugs))
        print(f"| {result.name} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    for result in results:
        for bug in result.bugs:
            print(f"BUG {result.name}: {bug}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the attempts, default 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the counts to this file")
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    results: list[AttackResult] = []
    for target in args.targets or TARGETS:
        start = time.monotonic()
        try:
            results += importlib.import_module(f"attacks.{target}").run(args.scale, args.seed)
        except Exception as error:  # the table of the other targets should not be lost
            results.append(AttackResult(f"{target}: not finished", bugs=[f"{type(error).__name__}: {error}"]))
        print(f"{target}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    print_table(results)
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 1 if any(result.bugs for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
