"""Train every method on the same Push-T demonstrations and play the same starts, on one GPU.

    python benchmarks/pusht_suite.py --demos pusht_cchi_v7_replay.zarr --out out/suite

Final averaged weights, nothing selected. Large runs train one by one, then small ones `--parallel` at a time,
while other processes play episodes of finished runs, in batches on the GPU. Run it again to resume: finished
runs and episodes are kept, and a large run continues from its last save. `--parts`, `--only` and
`--stop-after` divide the work, `--table` only writes the results so far. A training time is the duration of a
step on an otherwise idle GPU, times the number of steps. Writes `comparison.json`, which
`nsde-policy compare --from-json` turns into tables and plots.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import torch
from gpu_runs import Run, finish_runs, prepare_runs, sleep_while_waiting

from nsde_policy.eval.compare.entries import Entry, Episodes
from nsde_policy.eval.compare.result import ACTIONS, Comparison
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.evaluate import change_sampling
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import get_task


@dataclass(frozen=True)
class TrainSpec:
    """A training: method, preset, seed and changes to the preset."""

    method: str
    preset: str = "default"
    seed: int = 0
    steps: int = 0
    """Training steps; 0 for the preset's."""
    demos: int = 0
    """Number of demonstrations; 0 for all."""

    @property
    def folder(self) -> str:
        parts = [self.method, self.preset]
        parts += [f"{self.steps}-steps"] if self.steps else []
        parts += [f"{self.demos}-demos"] if self.demos else []
        return "-".join([*parts, str(self.seed)])

    @property
    def config(self) -> RunConfig:
        config = get_task("pusht").preset(self.preset, self.method)
        config = config.replace_parts(demos={"episodes": self.demos})
        return config.replace_parts(train={"steps": self.steps}) if self.steps else config


@dataclass(frozen=True)
class PlaySpec:
    """An evaluation: trained weights, sampling settings and disturbances."""

    name: str
    trained: TrainSpec
    sampling: tuple[str, ...] = ()
    chunk: int = 0
    """Actions executed before planning again; 0 for the preset's."""
    condition: Condition = field(default_factory=Condition)

    @property
    def file(self) -> str:
        disturbance = "-".join(f"{key}={value}" for key, value in asdict(self.condition).items() if value)
        parts = [self.name, self.trained.folder, f"chunk={self.chunk}" if self.chunk else "", disturbance]
        return " ".join(part for part in parts if part) + ".json"


SEEDS = (0, 1, 2)
LARGE = ("diffusion", "ibc", "bet", "lstm_gmm")
"""Methods with long steps, trained one run at a time."""
SHORT = 25_000
"""Steps of the short Neural SDE, and of all trainings on fewer demonstrations."""
DDIM = ("scheduler=ddim", "steps=10")


def _main() -> Iterator[PlaySpec]:
    for seed in SEEDS:
        yield PlaySpec("neural_sde", TrainSpec("neural_sde", seed=seed))
        yield PlaySpec("neural_sde, 25k steps", TrainSpec("neural_sde", seed=seed, steps=SHORT))
        for method in ("regression", "mip", "flow"):
            yield PlaySpec(method, TrainSpec(method, seed=seed))
    yield PlaySpec("diffusion", TrainSpec("diffusion"))
    yield PlaySpec("diffusion, DDIM-10", TrainSpec("diffusion"), sampling=DDIM)
    yield PlaySpec("diffusion, transformer", TrainSpec("diffusion", "transformer_pusht"))
    for method in ("lstm_gmm", "ibc", "bet", "knn"):
        yield PlaySpec(method, TrainSpec(method))
    yield PlaySpec("lstm_gmm, full noise", TrainSpec("lstm_gmm"), sampling=("noise=full",))
    yield PlaySpec("ibc, best", TrainSpec("ibc"), sampling=("answer=best",))
    yield PlaySpec("knn, relative", TrainSpec("knn"), sampling=("actions=relative",))


ROBUST = ("neural_sde", "diffusion", "diffusion, DDIM-10", "regression", "mip", "flow", "lstm_gmm", "bet")
"""Rows whose robustness is tested, one training of each."""


def _select_robustness_rows() -> list[PlaySpec]:
    names = (*ROBUST, "knn, relative")
    return [play for play in _main() if play.trained.seed == 0 and play.name in names]


def _disturb(conditions: list[Condition]) -> Iterator[PlaySpec]:
    for condition in conditions:
        yield from (replace(play, condition=condition) for play in _select_robustness_rows())


def _chunks() -> Iterator[PlaySpec]:
    for play in _select_robustness_rows():
        if play.name in ("neural_sde", "diffusion, DDIM-10", "regression", "mip", "flow"):
            yield from (replace(play, chunk=chunk) for chunk in (1, 2, 4))


def _fewer_demos() -> Iterator[PlaySpec]:
    for demos in (10, 25, 50, 100, 0):
        for method in ("neural_sde", "regression", "mip", "flow"):
            yield PlaySpec(f"{method}, 25k steps", TrainSpec(method, steps=SHORT, demos=demos))
        yield PlaySpec(
            "diffusion, small, 25k steps", TrainSpec("diffusion", "small", steps=SHORT, demos=demos)
        )
        yield PlaySpec("knn, relative", TrainSpec("knn", demos=demos), sampling=("actions=relative",))


PARTS: dict[str, list[PlaySpec]] = {
    "main": list(_main()),
    "push": list(_disturb([Condition(push=push) for push in (50.0, 100.0)])),
    "noise": list(_disturb([Condition(obs_noise=noise) for noise in (0.25, 0.5, 1.0)])),
    "latency": list(_disturb([Condition(latency_steps=late) for late in (1, 2, 4, 8)])),
    "chunk": list(_chunks()),
    "demos": list(_fewer_demos()),
}


def play_and_save(run: Run, play: PlaySpec, seeds: range, device: str, kept: Path) -> None:
    """Play episodes and save their entry of comparison.json."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    policy = Policy.from_pretrained(run.files.path)
    config, chunk = policy.record.config, play.chunk or policy.chunk
    sampling = change_sampling(config.model.sampling, play.sampling)
    rollout = RolloutConfig(sampling=sampling, chunk=chunk, condition=play.condition)
    batch = 1 if device == "cpu" else len(seeds)
    results = list(RolloutPool(run.files.path, rollout, device=device, batch=batch).evaluate(seeds))
    found = Entry(
        name=play.name,
        title=METHODS.get(config.method).title,
        method=config.method,
        preset=play.trained.preset,
        train_seed=play.trained.seed,
        demos=policy.record.demos.episodes,
        chunk=chunk,
        sampling=sampling.to_dict(),
        condition=play.condition,
        parameters=run.note.parameters,
        train_steps=config.train.steps,
        train_s=round(run.note.step_s * config.train.steps, 5),
        calls_per_chunk=policy.model.network_calls(policy.chunk, sampling) * ACTIONS / policy.chunk,
        latency_ms=None,
        episodes=Episodes.from_results(results),
    )
    replace_file(kept, found.to_json().encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/suite"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument(
        "--only", nargs="*", default=["*"], help="runs, like 'bet-*'; large ones in this order"
    )
    parser.add_argument("--table", action="store_true", help="only write the results so far")
    parser.add_argument("--parallel", type=int, default=32, help="small runs trained at once")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 2, 1))
    parser.add_argument("--steps", type=int, default=0, help="training steps of every run, for a try")
    parser.add_argument(
        "--stop-after",
        type=float,
        default=1e9,
        help="seconds until the results so far are written",
    )
    args = parser.parse_args()
    stop_at = time.monotonic() + args.stop_after
    torch.backends.cudnn.benchmark = True

    plays = [play for part in args.parts for play in PARTS[part]]
    plays = [play for name in args.only for play in plays if fnmatch(play.trained.folder, name)]
    plays = list(dict.fromkeys(plays))
    if args.steps:
        plays = [replace(play, trained=replace(play.trained, steps=args.steps)) for play in plays]
    seeds = range(args.seed_start, args.seed_start + args.episodes)
    runs = {
        what: Run(
            args.out / "runs" / what.folder,
            what.config,
            seed=what.seed,
            demos=args.demos,
            device=args.device,
        )
        for what in dict.fromkeys(play.trained for play in plays)
    }
    kept = {play: args.out / "entries" / play.file for play in plays}
    if args.table:
        return write_comparison(args, [path for path in kept.values() if path.exists()])
    if args.device.startswith("cuda"):
        sleep_while_waiting()
    pool = ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn"))
    jobs: list[Future[None]] = []
    try:
        for run in train_in_order(runs, args.parallel):
            for play in plays:
                if runs[play.trained] is run and not kept[play].exists():
                    jobs.append(pool.submit(play_and_save, run, play, seeds, args.device, kept[play]))
        wait(jobs, timeout=max(stop_at - time.monotonic(), 0))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        write_comparison(args, [kept[play] for play in plays if kept[play].exists()])
    for job in jobs:
        if job.done() and not job.cancelled():
            job.result()
    os._exit(0)  # do not wait for unfinished rollouts


def train_in_order(runs: dict[TrainSpec, Run], parallel: int) -> Iterator[Run]:
    """Yield trained runs first, then train large runs one by one, then small ones in parallel."""
    todo = prepare_runs(list(runs.values()))
    yield from (run for run in runs.values() if run not in todo)
    large = [run for what, run in runs.items() if run in todo and what.method in LARGE]
    yield from finish_runs(large, 1)
    yield from finish_runs([run for run in todo if run not in large], parallel)


def write_comparison(args: argparse.Namespace, kept: list[Path]) -> None:
    """Write comparison.json from the saved entries."""
    if not kept:
        return
    device = device_name(args.device)
    comparison = Comparison(
        task="pusht",
        env_kwargs={"reset_rule": "benchmark"},
        seeds=(args.seed_start, args.seed_start + args.episodes - 1),
        machine={"train": device, "play": device, "torch": str(torch.__version__)},
        entries=tuple(msgspec.json.decode(path.read_bytes(), type=Entry) for path in kept),
    )
    replace_file(args.out / "comparison.json", comparison.to_json().encode())
    print(f"{len(kept)} entries in {args.out / 'comparison.json'}", flush=True)


if __name__ == "__main__":
    main()
