"""Train variants of the Push-T policy and score them: the numbers in README.md and docs/pusht.md.

    python benchmarks/pusht_runs.py --demos pusht_cchi_v7_replay.zarr --out out/pusht_runs

Trains variants × seeds on one device, `--parallel` at a time, while the cores play what is finished: final
averaged weights, nothing selected. Training times are stated for runs that had the device to themselves
(`--parallel 1`). Run it again to continue: finished runs and episodes are kept. Writes `results.json` and
prints a Markdown table.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.checkpoint import DemoRecord, RunDirectory, RunRecord, versions
from nsde_policy.config import SamplingConfig
from nsde_policy.eval.intervals import mean, proportion
from nsde_policy.eval.rollout import EpisodeResult, RolloutConfig, evaluate
from nsde_policy.files import replace_file
from nsde_policy.run_config import RunConfig
from nsde_policy.runs import build_model, fit_layout, load_for, training_data
from nsde_policy.targets import Transitions
from nsde_policy.tasks.pusht import DEFAULT, FAST, PAPER, replaced
from nsde_policy.trainer import Training

SHORT = replaced(DEFAULT, train={"steps": 25_000})
ALPHA, DIFFUSION = DEFAULT.model.sampling.alpha, DEFAULT.model.sampling.diffusion
NO_DENOISER = SamplingConfig(denoiser="off", diffusion=DIFFUSION)


def _ablations(name: str, base: RunConfig) -> dict[str, RunConfig]:
    """A base, and the base less one thing at a time."""

    def model(**changes: Any) -> RunConfig:
        return replace(base, model=replace(base.model, **changes))

    return {
        name: base,
        f"{name} − mirror images": replaced(base, demos={"mirror": False}),
        f"{name} − final actions": replaced(base, demos={"final_action_weight": 0.0}),
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
# The weights of `default`, sampled differently.
RESAMPLED = {
    "default − diffusion": SamplingConfig(alpha=ALPHA, diffusion=0.0),
    "default, full diffusion": SamplingConfig(alpha=ALPHA, diffusion=1.0),
    "default, denoiser off": NO_DENOISER,
}
SHARD = 25
"""Episodes a core plays at a time."""


class Run:
    """One variant, one seed, on its way from nothing to weights."""

    def __init__(self, variant: str, seed: int, args: argparse.Namespace) -> None:
        self.variant, self.seed = variant, seed
        self.files = RunDirectory(args.out / f"{variant.replace(' ', '_').replace('−', 'no')}-{seed}")
        self._seconds = self.files.path / "seconds.json"
        self._training: Training[Transitions] | None = None
        self._device = args.device
        self._demos = args.demos
        config = VARIANTS[variant]
        self.config = replaced(config, train={"steps": args.steps or config.train.steps})

    @property
    def is_done(self) -> bool:
        return self._seconds.exists() and self.files.record().config == self.config

    @property
    def seconds(self) -> float | None:
        """Training time, where the run had the device to itself."""
        value: float | None = json.loads(self._seconds.read_text())
        return value

    def prepare(self) -> None:
        """Load, build and take the first steps, which capture the step on CUDA: one run at a time."""
        demos = load_for(self.config.demos, self._demos)
        data = training_data(demos, self.config, task="pusht")
        demo_record = DemoRecord(self._demos.name, demos.fingerprint, len(demos), len(demos.obs))
        record = RunRecord(self.config, fit_layout(data, demos), "pusht", self.seed, demo_record, versions())
        model = build_model(record).to(self._device)
        self.files.save_record(record)
        self._training = Training(model, data, self.config.train, seed=self.seed)
        self._training.advance(5)

    def finish(self, *, alone: bool) -> None:
        """Train to the end."""
        training, started = self._training, time.perf_counter()
        assert training is not None
        stream = torch.cuda.Stream() if self._device.startswith("cuda") else None
        with torch.cuda.stream(stream):
            while training.step < self.config.train.steps:
                training.advance(1000)
        self.files.save_weights(training.averaged())
        seconds = time.perf_counter() - started
        replace_file(self._seconds, json.dumps(seconds if alone else None).encode())
        self._training = None
        print(
            f"{self.variant} seed {self.seed}: {seconds:.1f} s{'' if alone else ' beside others'}", flush=True
        )


def trained(runs: list[Run], parallel: int) -> Iterator[Run]:
    """Train what is not trained yet; yields runs as they are finished."""
    todo = [run for run in runs if not run.is_done]
    yield from (run for run in runs if run.is_done)
    for start in range(0, len(todo), parallel):
        group = todo[start : start + parallel]
        for run in group:
            run.prepare()
        with ThreadPoolExecutor(len(group)) as threads:
            finishing = {threads.submit(run.finish, alone=len(group) == 1): run for run in group}
            for future in as_completed(finishing):
                future.result()
                yield finishing[future]


def play(path: Path, name: str, seeds: range, config: RolloutConfig) -> list[dict[str, Any]]:
    """Episodes of a shard, from the file that keeps them where they have been played before."""
    kept = path / "episodes" / f"{name} {config.reset_rule} {seeds.start}-{seeds.stop}.json"
    if not kept.exists():
        torch.set_num_threads(1)
        results: list[EpisodeResult] = list(evaluate(path, seeds, config))
        replace_file(kept, json.dumps([asdict(result) for result in results]).encode())
    episodes: list[dict[str, Any]] = json.loads(kept.read_text())
    return episodes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path)
    parser.add_argument("--table", type=Path, help="only print the table of this results.json")
    parser.add_argument("--out", type=Path, default=Path("out/pusht_runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--variants", nargs="*", default=[n for n in (*VARIANTS, *RESAMPLED) if "fast" not in n]
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=1, help="runs trained at once")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--reset-rule", default="benchmark")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 2, 1))
    parser.add_argument("--steps", type=int, default=0, help="training steps, for a try")
    parser.add_argument("--ship", action="store_true", help="put `default`, seed 0, into the package")
    args = parser.parse_args()
    if args.table:
        report = json.loads(args.table.read_text())
        print(table(report, list(dict.fromkeys(outcome["variant"] for outcome in report["outcomes"]))))
        return
    if args.demos is None:
        parser.error("--demos is needed to train")

    shards = [
        range(start, min(start + SHARD, args.seed_start + args.episodes))
        for start in range(args.seed_start, args.seed_start + args.episodes, SHARD)
    ]
    wanted = {
        ("default" if name in RESAMPLED else name, seed) for name in args.variants for seed in args.seeds
    }
    order = list(VARIANTS)
    runs = [Run(*key, args) for key in sorted(wanted, key=lambda key: (order.index(key[0]), key[1]))]
    pending: list[tuple[str, Run, list[Future[list[dict[str, Any]]]]]] = []
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        for run in trained(runs, args.parallel):
            for name in args.variants:
                if name == run.variant or (name in RESAMPLED and run.variant == "default"):
                    rollout = RolloutConfig(reset_rule=args.reset_rule, sampling=RESAMPLED.get(name))
                    jobs = [pool.submit(play, run.files.path, name, seeds, rollout) for seeds in shards]
                    pending.append((name, run, jobs))
        pending.sort(key=lambda each: each[1].seed)
        outcomes = [
            {
                "variant": name,
                "seed": run.seed,
                "train_s": run.seconds,
                "steps": run.config.train.steps,
                "episodes": [episode for job in jobs for episode in job.result()],
            }
            for name, run, jobs in pending
        ]
    report = {
        "seeds": [args.seed_start, args.seed_start + args.episodes - 1],
        "reset_rule": args.reset_rule,
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu",
        "torch": torch.__version__,
        "outcomes": outcomes,
    }
    replace_file(args.out / "results.json", json.dumps(report).encode())
    print(table(report, args.variants))
    if args.ship:
        trained_run = RunDirectory(args.out / "default-0")
        for file in (trained_run.config, trained_run.model):
            shutil.copy(file, SHIPPED_POLICY)


def table(report: dict[str, Any], variants: list[str]) -> str:
    """Markdown: variant, score, strict success, training time."""
    first, last = report["seeds"]
    rows = [
        f"{report['reset_rule']} starts {first} to {last}, trained on {report['device']}",
        "",
        "| variant | n | mean max reward | strict success | by training seed | training |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in variants:
        runs = [outcome for outcome in report["outcomes"] if outcome["variant"] == name]
        episodes = [episode for run in runs for episode in run["episodes"]]
        won = [sum(e["success"] for e in run["episodes"]) / len(run["episodes"]) for run in runs]
        times = [run["train_s"] for run in runs if run["train_s"] is not None]
        rows.append(
            f"| {name} | {len(episodes)} | {mean([e['max_reward'] for e in episodes])} "
            f"| {proportion(sum(e['success'] for e in episodes), len(episodes))} "
            f"| {', '.join(f'{share:.3f}' for share in won)} "
            f"| {f'{sum(times) / len(times):.0f} s' if times else '–'} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
