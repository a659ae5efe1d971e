"""Train variants of the Push-T policy and score them: the numbers in README.md and docs/pusht.md.

    python benchmarks/pusht_runs.py --demos pusht_cchi_v7_replay.zarr --out out/pusht_runs

Trains variants × seeds on one device, `--parallel` at a time, while the CPU cores play episodes of finished
runs: final averaged weights, nothing selected. Training times are stated for runs that were alone on the
device (`--parallel 1`). Run it again to resume, on any machine: finished runs and episodes are kept. Writes
`results.json` and prints a Markdown table.
"""

import argparse
import json
import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_runs import EPISODES, Run, sleep_while_waiting, train_runs
from result_files import read_results

from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.files import replace_file
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import get_task

DEFAULT, PAPER, FAST = (get_task("pusht").preset(name) for name in ("default", "paper", "fast"))
SHORT = DEFAULT.replace_parts(train={"steps": 25_000})
ALPHA, DIFFUSION = DEFAULT.model.sampling.alpha, DEFAULT.model.sampling.diffusion
NO_DENOISER = SamplingConfig(denoiser="off", diffusion=DIFFUSION)


def _ablations(name: str, base: RunConfig) -> dict[str, RunConfig]:
    """Return a base and its variants with one part removed each."""

    def model(**changes: Any) -> RunConfig:
        return replace(base, model=replace(base.model, **changes))

    return {
        name: base,
        f"{name} − mirror images": base.replace_parts(demos={"mirror": False}),
        f"{name} − final actions": base.replace_parts(demos={"final_action_weight": 0.0}),
        f"{name} − denoiser": model(denoiser=False, sampling=NO_DENOISER),
        f"{name} − noise and denoiser": model(noise=0.0, denoiser=False, sampling=NO_DENOISER),
        f"{name} − history": model(history=1),
        f"{name} − dropout": model(network=replace(base.model.network, dropout=0.0)),
        f"{name}, log loss": model(flow_loss="log"),
    }


VARIANTS: dict[str, RunConfig] = {
    "default": DEFAULT,
    "paper": PAPER,
    **_ablations("short", SHORT),
    **_ablations("fast", FAST),
}
# The weights of another variant, sampled differently.
RESAMPLED: dict[str, tuple[str, SamplingConfig]] = {
    "default − diffusion": ("default", SamplingConfig(alpha=ALPHA, diffusion=0.0)),
    "default, full diffusion": ("default", SamplingConfig(alpha=ALPHA, diffusion=1.0)),
    "default, denoiser off": ("default", NO_DENOISER),
    "short − diffusion": ("short", SamplingConfig(alpha=ALPHA, diffusion=0.0)),
}
REPORTED = [name for name in (*VARIANTS, *RESAMPLED) if "fast" not in name]
SHARD = 25
"""Number of episodes in one job of a core."""
EPISODE_FIELDS = ("max_reward", "success", "final_coverage", "steps")
"""Fields of an episode that are stored."""


def make_run(variant: str, seed: int, *, out: Path, demos: Path, device: str, steps: int) -> Run:
    """Make the run of one variant and training seed."""
    config = VARIANTS[variant]
    config = config.replace_parts(train={"steps": steps or config.train.steps})
    path = out / f"{variant.replace(' ', '_').replace('−', 'no')}-{seed}"
    return Run(path, config, seed=seed, demos=demos, device=device)


def play_shard(path: Path, name: str, seeds: range, config: RolloutConfig) -> list[dict[str, Any]]:
    """Play the episodes of a shard, or read them from its cache file."""
    kept = path / EPISODES / f"{name} {config.env_kwargs['reset_rule']} {seeds.start}-{seeds.stop}.json"
    if not kept.exists():
        torch.set_num_threads(1)
        results = [r.to_dict("max_reward") for r in RolloutPool(path, config).evaluate(seeds)]
        replace_file(
            kept, json.dumps([{key: result[key] for key in EPISODE_FIELDS} for result in results]).encode()
        )
    episodes: list[dict[str, Any]] = json.loads(kept.read_text())
    return episodes


def make_row(name: str, run: Run, episodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a row of the report: one list per field, in the order of the starts."""
    figures = {key: [round(float(episode[key]), 6) for episode in episodes] for key in EPISODE_FIELDS}
    for key in ("success", "steps"):
        figures[key] = [int(figure) for figure in figures[key]]
    return {
        "variant": name,
        "train_seed": run.seed,
        "train_steps": run.config.train.steps,
        "train_s": run.note.seconds,
        "trained_on": run.note.device,
        "torch": run.files.read_record().versions["torch"],
        **figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path)
    parser.add_argument("--table", type=Path, help="only print the table of this results.json")
    parser.add_argument("--out", type=Path, default=Path("out/pusht_runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variants", nargs="*", default=REPORTED, choices=[*VARIANTS, *RESAMPLED])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1, help="runs trained at once")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--reset-rule", default="benchmark")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 2, 1))
    parser.add_argument("--steps", type=int, default=0, help="training steps, for a try")
    args = parser.parse_args()
    if args.table:
        print(format_table(read_results(parser, args.table, "variant", "trained_on", rows="outcomes")))
        return
    if args.demos is None:
        parser.error("--demos is needed to train")
    if args.parallel > 1 and args.device.startswith("cuda"):
        sleep_while_waiting()

    shards = [
        range(start, min(start + SHARD, args.seed_start + args.episodes))
        for start in range(args.seed_start, args.seed_start + args.episodes, SHARD)
    ]
    rows = {name: RESAMPLED.get(name, (name, None)) for name in args.variants}
    order = [variant for variant in VARIANTS if variant in {base for base, _ in rows.values()}]
    runs = {
        make_run(variant, seed, out=args.out, demos=args.demos, device=args.device, steps=args.steps): variant
        for variant in order
        for seed in args.seeds
    }
    pending: dict[tuple[str, int], tuple[Run, list[Future[list[dict[str, Any]]]]]] = {}
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        for run in train_runs(list(runs), args.parallel):
            for name, (base, sampling) in rows.items():
                if base == runs[run]:
                    rollout = RolloutConfig(env_kwargs={"reset_rule": args.reset_rule}, sampling=sampling)
                    jobs = [pool.submit(play_shard, run.files.path, name, seeds, rollout) for seeds in shards]
                    pending[name, run.seed] = run, jobs
        outcomes = []
        for name, seed in ((name, seed) for name in rows for seed in args.seeds):
            run, jobs = pending[name, seed]
            outcomes.append(make_row(name, run, [episode for job in jobs for episode in job.result()]))
    report = {
        "starts": [args.seed_start, args.seed_start + args.episodes - 1],
        "reset_rule": args.reset_rule,
        "outcomes": outcomes,
    }
    replace_file(args.out / "results.json", format_json(report).encode())
    print(format_table(report))


def format_json(report: dict[str, Any]) -> str:
    """Format a report with one line per outcome, so that two files can be compared line by line."""
    head = json.dumps({key: value for key, value in report.items() if key != "outcomes"})
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in report["outcomes"])
    return f'{head[:-1]}, "outcomes": [\n{lines}\n]}}\n'


def format_table(report: dict[str, Any]) -> str:
    """Format a Markdown table of variant, score, strict success and training time."""
    first, last = report["starts"]
    machines = sorted({f"{each['trained_on']}, torch {each['torch']}" for each in report["outcomes"]})
    rows = [
        f"{report['reset_rule']} starts {first} to {last}, trained on {'; '.join(machines)}",
        "",
        "| variant | n | mean max reward | strict success | by training seed | training |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(each["variant"] for each in report["outcomes"]):
        runs = [each for each in report["outcomes"] if each["variant"] == name]
        rewards = [reward for run in runs for reward in run["max_reward"]]
        won = [success for run in runs for success in run["success"]]
        shares = [sum(run["success"]) / len(run["success"]) for run in runs]
        times = [f"{run['train_s']:.1f} s (seed {run['train_seed']})" for run in runs if run["train_s"]]
        rows.append(
            f"| {name} | {len(won)} | {mean(rewards)} | {proportion(sum(won), len(won))} "
            f"| {', '.join(f'{share:.3f}' for share in shares)} | {', '.join(times) or '–'} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
