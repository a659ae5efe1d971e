"""Train variants of the Push-T policy and score them: the numbers in README.md and docs/pusht.md.

    python benchmarks/pusht_runs.py --demos pusht_cchi_v7_replay.zarr --out out/pusht_runs

Trains every variant with every seed, one after the other on one device, while the cores evaluate what is
finished: final averaged weights, nothing selected, T_a = 8. Run it again to continue: finished runs and
finished evaluations are kept. Writes `results.json` and prints a Markdown table.
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nsde_policy.checkpoint import RunDirectory
from nsde_policy.config import SamplingConfig
from nsde_policy.eval.rollout import EpisodeResult, RolloutConfig, evaluate
from nsde_policy.eval.scores import mean, proportion
from nsde_policy.files import replace_file
from nsde_policy.run_config import RunConfig
from nsde_policy.runs import Progress, load_for, train_run
from nsde_policy.tasks.pusht import DEFAULT, PAPER, replaced

NO_DENOISER = SamplingConfig(denoiser="off", diffusion=DEFAULT.model.sampling.diffusion)


def _model(**changes: Any) -> RunConfig:
    return replace(DEFAULT, model=replace(DEFAULT.model, **changes))


@dataclass(frozen=True)
class Variant:
    """Something to train and score."""

    config: RunConfig
    weights_of: str | None = None
    """Take the weights of this variant and only sample them differently."""


TRAINED = {
    "default": DEFAULT,
    "20 s": replaced(DEFAULT, train={"steps": 30_000}),
    "paper": PAPER,
    "− mirror images": replaced(DEFAULT, demos={"mirror": False}),
    "− final actions": replaced(DEFAULT, demos={"final_action_weight": 0.0}),
    "− denoiser": _model(denoiser=False, sampling=NO_DENOISER),
    "− noise": _model(noise=0.0, denoiser=False, sampling=NO_DENOISER),
    "− history": _model(history=1),
    "− dropout": _model(network=replace(DEFAULT.model.network, dropout=0.0)),
    "log loss": _model(flow_loss="log"),
}
RESAMPLED = {
    "− diffusion, same weights": SamplingConfig(alpha=DEFAULT.model.sampling.alpha, diffusion=0.0),
    "− denoiser, same weights": NO_DENOISER,
    "full diffusion, same weights": SamplingConfig(alpha=DEFAULT.model.sampling.alpha, diffusion=1.0),
}


@dataclass
class Outcome:
    """One variant, one seed."""

    variant: str
    seed: int
    train_s: float
    episodes: list[dict[str, Any]] = field(default_factory=list)


def train_one(name: str, seed: int, args: argparse.Namespace) -> Path:
    config: RunConfig = TRAINED[name]
    if args.steps:
        config = replaced(config, train={"steps": min(args.steps, config.train.steps)})
    path: Path = args.out / f"{name.replace(' ', '_').replace('−', 'no')}-{seed}"
    if RunDirectory(path).model.exists() and (path / "seconds.txt").exists():
        return path
    seconds = 0.0

    def watch(progress: Progress) -> None:
        nonlocal seconds
        seconds = progress.seconds

    config = replaced(config, train={"log_every": 1000})
    demos = load_for(config.demos, args.demos)
    started = time.perf_counter()
    train_run(
        demos,
        config,
        path,
        task="pusht",
        seed=seed,
        device=args.device,
        save_every_s=1e9,
        watch=watch,
        resume=RunDirectory(path).config.exists(),
    )
    total = time.perf_counter() - started
    (path / "seconds.txt").write_text(f"{seconds}\n")
    print(f"{name} seed {seed}: {seconds:.1f} s of training, {total:.1f} s in all", flush=True)
    return path


def play_all(path: Path, seeds: range, config: RolloutConfig) -> list[EpisodeResult]:
    torch.set_num_threads(1)
    return list(evaluate(path, seeds, config))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/pusht_runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--variants", nargs="*", default=[*TRAINED, *RESAMPLED])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--reset-rule", default="benchmark")
    parser.add_argument("--steps", type=int, default=0, help="cap the training steps, for a try")
    args = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    seeds = range(args.seed_start, args.seed_start + args.episodes)
    outcomes: list[Outcome] = []
    pending: list[tuple[Outcome, Future[list[EpisodeResult]]]] = []
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        for name in args.variants:
            for seed in args.seeds:
                path = train_one("default" if name in RESAMPLED else name, seed, args)
                rollout = RolloutConfig(reset_rule=args.reset_rule, sampling=RESAMPLED.get(name))
                outcome = Outcome(name, seed, float((path / "seconds.txt").read_text()))
                pending.append((outcome, pool.submit(play_all, path, seeds, rollout)))
        for outcome, future in pending:
            outcome.episodes = [asdict(result) for result in future.result()]
            outcomes.append(outcome)
    report = {
        "seeds": [seeds.start, seeds.stop - 1],
        "reset_rule": args.reset_rule,
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    replace_file(args.out / "results.json", json.dumps(report).encode())
    print(table(report))


def table(report: dict[str, Any]) -> str:
    """Markdown: variant, score, strict success, training time."""
    first, last = report["seeds"]
    rows = [
        f"{report['reset_rule']} starts {first} to {last}, trained on {report['device']}",
        "",
        "| variant | mean max reward | strict success | by training seed | training |",
        "| --- | --- | --- | --- | --- |",
    ]
    names = list(dict.fromkeys(outcome["variant"] for outcome in report["outcomes"]))
    for name in names:
        runs = [outcome for outcome in report["outcomes"] if outcome["variant"] == name]
        episodes = [episode for run in runs for episode in run["episodes"]]
        won = [sum(e["success"] for e in run["episodes"]) / len(run["episodes"]) for run in runs]
        rows.append(
            f"| {name} | {mean([e['max_reward'] for e in episodes])} "
            f"| {proportion(sum(e['success'] for e in episodes), len(episodes))} "
            f"| {', '.join(f'{share:.3f}' for share in won)} "
            f"| {sum(run['train_s'] for run in runs) / len(runs):.0f} s |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
