"""Attack the package and print a table for each target: tried, refused, survived, bugs.

    python benchmarks/attack.py                             # all targets, two minutes each
    python benchmarks/attack.py --target sessions files     # two targets
    python benchmarks/attack.py --seconds 20 --seed 7       # less time, other attempts

Targets are the modules of `benchmarks/attacks` without an underscore. The exit code is 1 if there is a bug.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from attacks._attempts import Row, Worker  # noqa: E402

TARGETS = sorted(path.stem for path in HERE.glob("attacks/[a-z]*.py"))


def run_target(name: str, seconds: float, seed: int) -> dict[str, Row]:
    """Try attempts for about that long, at least one; return their counts."""
    rows: dict[str, Row] = {}
    with Worker(name, seed) as worker:
        ends, number = time.monotonic() + seconds, 0
        while number == 0 or time.monotonic() < ends:
            worker.attempt(number, rows)
            number += 1
    return rows


def print_table(rows: dict[str, Row]) -> None:
    """Print a Markdown table of the counts, then every bug."""
    print("| attack | tried | refused | survived | bugs |\n| --- | --: | --: | --: | --: |")
    for name, row in sorted(rows.items()):
        counts = (row.refused + row.survived + len(row.bugs), row.refused, row.survived, len(row.bugs))
        print(f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    for name, row in rows.items():
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
    rows: dict[str, Row] = {}
    for target in args.target:
        found = run_target(target, args.seconds, args.seed)
        print_table(found)
        rows.update(found)
    if args.json:
        counts = {name: asdict(row) for name, row in rows.items()}
        args.json.write_text(json.dumps(counts, indent=1) + "\n")
    return 1 if any(row.bugs for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
