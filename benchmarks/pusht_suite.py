"""Every method on Push-T: trained on the same demonstrations, played on the same starts, on one GPU.

    python benchmarks/pusht_suite.py --demos pusht_cchi_v7_replay.zarr --out out/suite

Final averaged weights, nothing selected. Large runs train one by one, then small ones `--parallel` at a time,
while other processes play what is finished, many episodes side by side on the GPU. Run it again to continue,
finished runs and episodes are kept and a large run goes on where it was saved last; `--parts`, `--only` and
`--stop-after` cut the work into pieces, `--table` puts all that is played together. A training time is that
of a step while nothing else runs, times all steps. Writes `comparison.json`, which
`nsde-policy compare --from-json` turns into tables and plots.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

import torch
from gpu_runs import Run, finished, prepared, wait_asleep

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
class Trained:
    """What is trained."""

    method: str
    preset: str = "default"
    seed: int = 0
    steps: int = 0
    """0 for the preset's own."""
    demos: int = 0
    """0 for all."""

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
class Played:
    """What is played: trained weights under a setting."""

    name: str
    trained: Trained
    sampling: tuple[str, ...] = ()
    chunk: int = 0
    """0 for the preset's own."""
    condition: Condition = field(default_factory=Condition)

    @property
    def file(self) -> str:
        trouble = "-".join(f"{key}={value}" for key, value in asdict(self.condition).items() if value)
        parts = [self.name, self.trained.folder, f"chunk={self.chunk}" if self.chunk else "", trouble]
        return " ".join(part for part in parts if part) + ".json"


SEEDS = (0, 1, 2)
LARGE = ("diffusion", "ibc", "bet", "lstm_gmm")
"""Methods whose steps are long: trained one run at a time."""
SHORT = 25_000
"""Steps of the short Neural SDE, and of all trainings on fewer demonstrations."""
DDIM = ("scheduler=ddim", "steps=10")


def _main() -> Iterator[Played]:
    for seed in SEEDS:
        yield Played("neural_sde", Trained("neural_sde", seed=seed))
        yield Played("neural_sde, 25k steps", Trained("neural_sde", seed=seed, steps=SHORT))
        for method in ("regression", "mip", "flow"):
            yield Played(method, Trained(method, seed=seed))
    yield Played("diffusion", Trained("diffusion"))
    yield Played("diffusion, DDIM-10", Trained("diffusion"), sampling=DDIM)
    yield Played("diffusion, transformer", Trained("diffusion", "transformer_pusht"))
    for method in ("lstm_gmm", "ibc", "bet", "knn"):
        yield Played(method, Trained(method))
    yield Played("lstm_gmm, full noise", Trained("lstm_gmm"), sampling=("noise=full",))
    yield Played("ibc, best", Trained("ibc"), sampling=("answer=best",))
    yield Played("knn, relative", Trained("knn"), sampling=("actions=relative",))


STURDY = ("neural_sde", "diffusion", "diffusion, DDIM-10", "regression", "mip", "flow", "lstm_gmm", "bet")
"""Rows whose robustness is tested, one training of each."""


def _sturdy() -> list[Played]:
    return [play for play in _main() if play.trained.seed == 0 and play.name in (*STURDY, "knn, relative")]


def _troubles(conditions: list[Condition]) -> Iterator[Played]:
    for condition in conditions:
        yield from (replace(play, condition=condition) for play in _sturdy())


def _chunks() -> Iterator[Played]:
    for play in _sturdy():
        if play.name in ("neural_sde", "diffusion, DDIM-10", "regression", "mip", "flow"):
            yield from (replace(play, chunk=chunk) for chunk in (1, 2, 4))


def _fewer_demos() -> Iterator[Played]:
    for demos in (10, 25, 50, 100, 0):
        for method in ("neural_sde", "regression", "mip", "flow"):
            yield Played(f"{method}, 25k steps", Trained(method, steps=SHORT, demos=demos))
        yield Played("diffusion, small, 25k steps", Trained("diffusion", "small", steps=SHORT, demos=demos))
        yield Played("knn, relative", Trained("knn", demos=demos), sampling=("actions=relative",))


PARTS: dict[str, list[Played]] = {
    "main": list(_main()),
    "push": list(_troubles([Condition(push=push) for push in (50.0, 100.0)])),
    "noise": list(_troubles([Condition(obs_noise=noise) for noise in (0.25, 0.5, 1.0)])),
    "latency": list(_troubles([Condition(latency_steps=late) for late in (1, 2, 4, 8)])),
    "chunk": list(_chunks()),
    "demos": list(_fewer_demos()),
}


def perform(run: Run, play: Played, seeds: range, device: str, kept: Path) -> None:
    """Play, and keep the entry of comparison.json."""
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
        train_s=run.note.step_s * config.train.steps,
        calls_per_chunk=policy.model.network_calls(policy.chunk, sampling) * ACTIONS / policy.chunk,
        latency_ms=None,
        episodes=Episodes.of(results),
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
    parser.add_argument("--table", action="store_true", help="only write what has been played")
    parser.add_argument("--parallel", type=int, default=32, help="small runs trained at once")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 1) - 2, 1))
    parser.add_argument("--steps", type=int, default=0, help="training steps of every run, for a try")
    parser.add_argument(
        "--stop-after", type=float, default=1e9, help="seconds after which to write what is there"
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
        return write(args, [path for path in kept.values() if path.exists()])
    if args.device.startswith("cuda"):
        wait_asleep()
    pool = ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn"))
    jobs: list[Future[None]] = []
    try:
        for run in in_turn(runs, args.parallel):
            for play in plays:
                if runs[play.trained] is run and not kept[play].exists():
                    jobs.append(pool.submit(perform, run, play, seeds, args.device, kept[play]))
        wait(jobs, timeout=max(stop_at - time.monotonic(), 0))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        write(args, [kept[play] for play in plays if kept[play].exists()])
    for job in jobs:
        if job.done() and not job.cancelled():
            job.result()
    os._exit(0)  # without waiting for players that are not done


def in_turn(runs: dict[Trained, Run], parallel: int) -> Iterator[Run]:
    """What is trained already, then large runs one by one, then small ones together."""
    todo = prepared(list(runs.values()))
    yield from (run for run in runs.values() if run not in todo)
    large = [run for what, run in runs.items() if run in todo and what.method in LARGE]
    yield from finished(large, 1)
    yield from finished([run for run in todo if run not in large], parallel)


def write(args: argparse.Namespace, kept: list[Path]) -> None:
    """Write comparison.json from what was played."""
    if not kept:
        return
    device = device_name(args.device)
    comparison = Comparison(
        task="pusht",
        reset_rule="benchmark",
        seeds=(args.seed_start, args.seed_start + args.episodes - 1),
        machine={"train": device, "play": device, "torch": torch.__version__},
        entries=tuple(Entry.from_dict(json.loads(path.read_text())) for path in kept),
    )
    replace_file(args.out / "comparison.json", comparison.to_json().encode())
    print(f"{len(kept)} entries in {args.out / 'comparison.json'}", flush=True)


if __name__ == "__main__":
    main()
