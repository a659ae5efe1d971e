"""Run an experiment of benchmarks/experiments: train its methods, roll them out on the same seeds.

    python benchmarks/suite.py pusht --demos ../shared/demos --out out/pusht
    python benchmarks/suite.py pusht --out out/pusht --table           # the tables of the results so far
    python benchmarks/suite.py avoiding --smoke --device cpu           # all of it, tiny, to see that it works

Final averaged weights are rolled out, nothing is selected. Settings are chosen on seeds 200000 and up
(`--seed-start`), and results are reported on seeds 100000 and up. Small runs train `--parallel` at a time on
one GPU, large ones alone, while other processes roll out finished runs: `--players` rows at a time, on the
device in batches or on the CPU with `--workers` processes each. Training times are reported with
`--parallel 1` only.

Run it again to resume: finished runs and rows are kept, a stopped training continues, and `results.json` is
written after every row. `--only`, `--rows`, `--parts`, `--tasks` and `--limit-s` divide the work; `--only
train` needs no simulator.

Results are one comparison per task.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from experiment import list_experiments, read_experiment

from nsde_policy.errors import NsdePolicyError

STAGES = ("collect", "train", "play")
"""What a call does."""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    cuda, cores = torch.cuda.is_available(), os.cpu_count() or 1
    add("experiment", choices=list_experiments())
    add("--demos", type=Path, help="folder of the stores of demonstrations")
    add("--out", type=Path, help="folder of runs and results; default: out/EXPERIMENT")
    add("--only", nargs="+", default=STAGES, choices=STAGES)
    add("--rows", nargs="+", default=["*"], help="rows, such as 'diffusion*'")
    add("--parts", nargs="+", help="parts of the experiment, such as main or push")
    add("--tasks", nargs="+", help="tasks of the experiment")
    add("--train-seeds", nargs="+", type=int, help="training seeds; default: as the experiment declares")
    add("--episodes", type=int, default=0, help="rollouts per row; 0 for those of the experiment")
    add("--seed-start", type=int, default=100_000, help="first seed")
    add("--env-kwargs", type=json.loads, default={}, help="JSON, arguments of the environment")
    add("--device", default="cuda" if cuda else "cpu")
    add("--play-device", help="device of the rollouts; default: --device")
    add("--parallel", type=int, default=16 if cuda else 1, help="small runs trained at once")
    add("--parallel-cameras", type=int, default=1, help="runs with cameras trained at once")
    add("--players", type=int, default=4 if cuda else max(cores - 2, 1), help="rows at once")
    add("--workers", type=int, default=1, help="processes of each row on a CPU")
    add("--limit-s", type=float, default=1e9, help="seconds of this call")
    add(
        "--smoke", action="store_true", help="tiny trainings and rollouts of everything, to see that it works"
    )
    add("--table", action="store_true", help="only print the tables of the results so far")
    return parser


def main() -> None:
    parser = build_parser()
    args = parser.parse_args()
    args.out = args.out or Path("out") / args.experiment
    values = read_experiment(args.experiment)
    try:
        if values.get("kind", "rollouts") == "rollouts":
            from rollout_runs import run_rollouts

            run_rollouts(values, args)
        elif values["kind"] == "offline":
            from offline_runs import run_offline

            run_offline(values, args)
        else:
            from video_runs import run_videos

            run_videos(values, args)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
