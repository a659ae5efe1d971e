"""Train settings of the Neural SDE on obstacle avoidance and play them: success and entropy of modes.

    python benchmarks/avoiding_settings.py --out out/avoiding --parallel 8                      # tuning seeds
    python benchmarks/avoiding_settings.py --settings preset --sampled "" --train-seeds 3 --seed-start 100000
    python benchmarks/avoiding_settings.py --settings "auto, blur 1.5" --tasks avoiding avoiding_varied
    python benchmarks/avoiding_settings.py --table out/avoiding/results.json

Trains on the demonstrations of the package, `--parallel` runs at a time on one device, while processes play
480 episodes of every finished run with every sampling: those of `--sampled`, "" for the sampling of the
preset itself. Seeds from 200000 on are for tuning, those from 100000 on are reported. Run it again to resume:
finished runs and episodes are kept. Writes `results.json` and prints a table; rows are sorted by success ×
entropy.
"""

import argparse
import itertools
import json
import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flag_types import parse_count, parse_count_or_zero
from gpu_runs import EPISODES, Run, sleep_while_waiting, train_runs
from result_files import read_results

from nsde_policy.assets import find_demos
from nsde_policy.eval.modes import ModeOutcomes, estimate_diversity
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.statistics import proportion
from nsde_policy.files import replace_file
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import Task, get_task
from nsde_policy.training.presets import resolve_preset

TASK = get_task("avoiding")
SHARD = 48
"""Number of episodes in one job of a core."""


def vary(*, mirror: bool = False, **model: Any) -> RunConfig:
    """Return the task's preset `default`, which has a history of 2, with some parts changed."""
    return TASK.preset("default").replace_parts(demos={"mirror": mirror}, model=model)


TRAINED: dict[str, RunConfig] = {
    "preset": TASK.preset("default"),
    "preset fast": TASK.preset("fast"),
    "blur 0.7": vary(noise=0.7),
    "blur 1.5": vary(noise=1.5),
    "blur 2.5": vary(noise=2.5),
    "blur 1.5, mirrored": vary(noise=1.5, mirror=True),
    "blur 0.7, history 8": vary(noise=0.7, history=8),
    "blur 1.5, history 8": vary(noise=1.5, history=8),
}
"""What is trained, by name; "preset" is "blur 1.5". Presets are trained only if they are asked for."""
AUTO_BLURS = {"auto, blur 0.7": 0.7, "auto, blur 1.5": 1.5}
"""The preset `auto` with the blur it is trained with, by name."""
SAMPLED: dict[str, dict[str, Any]] = {
    "": {},
    "α 0, diffusion 1": {"alpha": 0.0, "diffusion": 1.0},
    "α 0.5, diffusion 1": {"alpha": 0.5, "diffusion": 1.0},
    "α 1, diffusion 1": {"alpha": 1.0, "diffusion": 1.0},
    "α 1, diffusion 1.5": {"alpha": 1.0, "diffusion": 1.5},
    "α 1, diffusion 2": {"alpha": 1.0, "diffusion": 2.0},
    "α 1.5, diffusion 2": {"alpha": 1.5, "diffusion": 2.0},
    "α 1.5, diffusion 2.25": {"alpha": 1.5, "diffusion": 2.25},
    "α 1.5, diffusion 2.5": {"alpha": 1.5, "diffusion": 2.5},
    "α 1.5, diffusion 3": {"alpha": 1.5, "diffusion": 3.0},
    "α 2, diffusion 3": {"alpha": 2.0, "diffusion": 3.0},
}
"""How a trained policy is sampled, by what is added to its name."""


def choose_config(task: Task, name: str) -> RunConfig:
    """Return the settings by their name; those of `auto` depend on the demonstrations of the task."""
    if name in TRAINED:
        return TRAINED[name]
    _, config = resolve_preset(task, "auto", "neural_sde", demos=None, selection={})
    return config.replace_parts(model={"noise": AUTO_BLURS[name]})


def play_shard(path: Path, task: str, sampled: str, seeds: range) -> list[dict[str, Any]]:
    """Play the episodes of a shard, or read them from its cache file."""
    kept = path / EPISODES / f"{sampled or 'plain'} {seeds.start}-{seeds.stop}.json"
    if not kept.exists():
        torch.set_num_threads(1)
        model: Any = RunDirectory(path).read_record().config.model
        sampling = replace(model.sampling, **SAMPLED[sampled])
        rollout = RolloutConfig(get_task(task), sampling=sampling)
        results = list(RolloutPool(path, rollout).evaluate(seeds))
        rows = [{"success": bool(r.success), "mode": r.mode, "steps": r.steps} for r in results]
        replace_file(kept, json.dumps(rows).encode())
    episodes: list[dict[str, Any]] = json.loads(kept.read_text())
    return episodes


def format_table(report: dict[str, Any]) -> str:
    """Format a Markdown table: one row per setting, pooled over trainings."""
    rows = []
    for name in dict.fromkeys(row["name"] for row in report["rows"]):
        own = [row for row in report["rows"] if row["name"] == name]
        outcomes = [
            ModeOutcomes.from_columns(TASK.modes, row["mode"], [bool(s) for s in row["success"]], None)
            for row in own
        ]
        won = sum(sum(row["success"]) for row in own)
        n = sum(len(row["success"]) for row in own)
        diversity = estimate_diversity(outcomes, n=n)
        seen = ", ".join(str(each.observed) for each in outcomes)
        steps = f", {own[0]['train_steps']:,} steps" if "train_steps" in own[0] else ""
        shares = ", ".join(f"{sum(row['success']) / len(row['success']):.3f}" for row in own)
        rows.append(
            (
                diversity.product.value,
                f"| {name}{steps} | {n} | {proportion(won, n)} | {diversity.entropy} | {diversity.product} "
                f"| {shares} | {seen} |",
            )
        )
    first, last = report["starts"]
    head = [
        f"seeds {first} to {last}, trained on {', '.join(report['devices'])}",
        "",
        "| setting | n | success | entropy | success × entropy | success by training | modes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *(row for _, row in sorted(rows, reverse=True))])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/avoiding"))
    parser.add_argument("--table", type=Path, help="only print the table of this results.json")
    parser.add_argument("--tasks", nargs="+", default=[TASK.name], choices=["avoiding", "avoiding_varied"])
    usual = [name for name in TRAINED if name.startswith("blur")]
    parser.add_argument("--settings", nargs="+", default=usual, choices=[*TRAINED, *AUTO_BLURS])
    parser.add_argument("--sampled", nargs="+", default=[*filter(None, SAMPLED)], choices=SAMPLED)
    parser.add_argument("--train-seeds", type=parse_count, default=1, help="trainings of each setting")
    parser.add_argument("--episodes", type=parse_count, default=480)
    parser.add_argument("--seed-start", type=parse_count_or_zero, default=200_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parallel", type=parse_count, default=1, help="runs trained at once")
    parser.add_argument("--workers", type=parse_count, default=max((os.cpu_count() or 1) - 2, 1))
    parser.add_argument(
        "--steps", type=parse_count_or_zero, default=0, help="training steps; 0 for those of the settings"
    )
    args = parser.parse_args()
    if args.table:
        print(format_table(read_results(parser, args.table, "name", "mode", "success")))
        return
    if args.parallel > 1 and args.device.startswith("cuda"):
        sleep_while_waiting()

    stop = args.seed_start + args.episodes
    shards = [range(start, min(start + SHARD, stop)) for start in range(args.seed_start, stop, SHARD)]
    runs = {}
    for task, name in itertools.product(args.tasks, args.settings):
        config = choose_config(get_task(task), name)
        config = config.replace_parts(train={"steps": args.steps or config.train.steps})
        for seed in range(args.train_seeds):
            path = args.out / task / f"{name.replace(' ', '_')}-{seed}"
            run = Run(path, config, seed=seed, demos=find_demos(task), device=args.device, task=task)
            runs[run] = (task, name)
    jobs: list[tuple[str, Run, list[Future[list[dict[str, Any]]]]]] = []
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        for run in train_runs(list(runs), args.parallel):
            for sampled in args.sampled:
                task, name = runs[run]
                name = ", ".join(filter(None, (task if len(args.tasks) > 1 else "", name, sampled)))
                played = [pool.submit(play_shard, run.files.path, task, sampled, seeds) for seeds in shards]
                jobs.append((name, run, played))
        rows, devices = [], set()
        for name, run, played in jobs:
            episodes = [episode for future in played for episode in future.result()]
            columns = {
                key: [int(episode[key]) for episode in episodes] for key in ("success", "mode", "steps")
            }
            note = run.note
            devices.add(note.device)
            trained = {"train_steps": run.config.train.steps, "train_s": note.seconds}
            rows.append({"name": name, "train_seed": run.seed, **trained, **columns})
    rows.sort(key=lambda row: (row["name"], row["train_seed"]))
    report = {"starts": [args.seed_start, stop - 1], "devices": sorted(devices), "rows": rows}
    replace_file(args.out / "results.json", (json.dumps(report, ensure_ascii=False) + "\n").encode())
    print(format_table(report))


if __name__ == "__main__":
    main()
