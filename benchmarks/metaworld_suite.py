"""Collect demonstrations of Meta-World's scripted experts, train a policy on each task, and play it.

    python benchmarks/metaworld_suite.py --out out/metaworld
    python benchmarks/metaworld_suite.py --table out/metaworld/results.json

50 successful episodes of each expert from seed 300000 on; the Neural SDE with the preset `auto`, final
weights, nothing selected; 100 episodes from seed 100000 on (`--seed-start 200000` to tune). `--only` divides
the work: `collect` and `play` need the extra `metaworld`, `train` does not. Run it again to resume: stores,
runs and scores that are finished are kept. `results.json` holds every episode, how many episodes the experts
tried, and the machines.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from result_files import read_results

from nsde_policy.eval.evaluate import evaluate_policy
from nsde_policy.eval.generate import GenerateConfig, generate
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.files import replace_file
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.presets import resolve_preset
from nsde_policy.training.progress import pick_device, train

EXPERTS = {
    "reach-v3": "SawyerReachV3Policy",
    "push-v3": "SawyerPushV3Policy",
    "drawer-open-v3": "SawyerDrawerOpenV3Policy",
    "window-open-v3": "SawyerWindowOpenV3Policy",
    "button-press-topdown-v3": "SawyerButtonPressTopdownV3Policy",
}
"""Tasks and the classes of their experts in `metaworld.policies`."""
STAGES = ("collect", "train", "play")


def collect(name: str, args: argparse.Namespace) -> None:
    """Collect the demonstrations of a task, and write how many episodes were tried for them."""
    config = GenerateConfig(args.demos, env=f"metaworld:{name}", only_success=True)
    expert = f"metaworld.policies:{EXPERTS[name]}"
    kept = generate(expert, args.out / f"{name}.zarr", config, workers=args.workers)
    tried = kept[-1].seed + 1 - config.seed_start
    count = {"episodes": len(kept), "tried": tried, "first_seed": config.seed_start}
    write_json(args.out / f"{name}.json", count)
    print(f"{name}: {len(kept)} of {tried} episodes succeed", flush=True)


def train_task(name: str, seed: int, args: argparse.Namespace) -> None:
    """Train a policy, unless that was done before, and write the machine into its run directory."""
    run, store = args.out / "runs" / f"{name}-{seed}", args.out / f"{name}.zarr"
    if RunDirectory(run).model.exists() and RunDirectory(run).describe_unfinished() is None:
        return
    task = f"metaworld:{name}"
    _, config = resolve_preset(get_task(task), "auto", "neural_sde", demos=store, selection={})
    if args.steps:
        config = config.replace_parts(train={"steps": args.steps})
    train(store, config, run, task=task, seed=seed, device=args.device, resume=run.exists())
    write_json(run / "machine.json", describe_machine(args.device))


def play(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Play a policy and return its row of the results."""
    run = args.out / "runs" / f"{name}-{seed}"
    file = args.out / "scores" / f"{name}-{seed}-{args.seed_start}-{args.episodes}.json"
    if not file.exists():
        found = evaluate_policy(run, episodes=args.episodes, seed_start=args.seed_start, workers=args.workers)
        replace_file(file, found.scores.to_json(**found.context).encode())
    origin = {
        "steps": RunDirectory(run).read_record().config.train.steps,
        "trained_on": json.loads((run / "machine.json").read_text()),
        "demonstrations": json.loads((args.out / f"{name}.json").read_text()),
    }
    return {"task": name, "train_seed": seed, **origin, **json.loads(file.read_text()), "run": run.name}


def describe_machine(device: str) -> str:
    """Return the processor behind a device and the version of torch."""
    return f"{device_name(pick_device(device))}, torch {torch.__version__}"


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON, replacing an older one."""
    replace_file(path, json.dumps(value, indent=1).encode())


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the success of experts and policies on each task, and the mean over tasks.

    The interval of the mean is for these tasks: starts are resampled, with all trainings that played them.
    """
    everything, starts = list[bool](), list[int]()
    for number, name in enumerate(dict.fromkeys(row["task"] for row in rows)):
        own = [row for row in rows if row["task"] == name]
        episodes = [each for row in own for each in row["episodes"]]
        won = [each["success"] for each in episodes]
        everything += won
        starts += [number << 32 | each["seed"] for each in episodes]
        demos, tries = own[0]["demonstrations"], f"{len(own)} × {len(own[0]['episodes'])}"
        expert, share = f"{demos['episodes']} of {demos['tried']}", proportion(sum(won), len(won))
        print(f"| {name} | {expert} | {own[0]['steps']:,} | {tries} | {share} |")
    print(f"| mean | | | | {mean(everything, groups=starts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/metaworld"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", choices=STAGES)
    parser.add_argument("--tasks", nargs="*", default=list(EXPERTS), choices=EXPERTS)
    parser.add_argument("--demos", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each task")
    parser.add_argument("--steps", type=int, default=0, help="training steps; 0 for those of auto")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    if args.table:
        print_table(read_results(parser, args.table, "task", "demonstrations"))
        return
    stages, runs = [args.only] if args.only else STAGES, range(args.seeds)
    for name in args.tasks if "collect" in stages else ():
        collect(name, args)
    for name, seed in [(name, seed) for name in args.tasks for seed in runs if "train" in stages]:
        train_task(name, seed, args)
    if "play" in stages:
        rows = [play(name, seed, args) for name in args.tasks for seed in runs]
        write_json(args.out / "results.json", rows)
        print_table(rows)


if __name__ == "__main__":
    main()
