"""Train every method on several tasks with the same budget and play the same starts.

    python benchmarks/tasks_suite.py --demos ../shared/demos --out out/tasks

Budget: every training sees the same number of examples, `--examples`, in batches of the method's own size;
`--examples 0` trains as long as the presets do.
Settings are those of the task's default preset; final averaged weights are played, nothing is selected. Small
methods are trained three times, `--parallel` at a time, large ones once, `--parallel-large` at a time.
Avoiding has demonstrations in the package; those of the Adroit hand are `adroit_NAME_expert.zarr` in the
folder `--demos`.

Run it again to resume: at `--limit-s` trainings are saved and evaluations wait for the next call. `--only`
divides the work: `train` needs no simulator, `play` needs that of the task, `latency` times one training of
each method on one CPU thread. `--chunks 1 5 10` plays with these numbers of actions before planning again,
instead of the preset's. To play elsewhere what was trained here, `--pack FOLDER` writes finished runs
as zip files of at most 15 MiB, matrices in half precision, and `--unpack FILE …` adds them to `--out`; knn
and runs that are larger are left out.

Writes `results.json` after every evaluation, one comparison per task; `--table FILE …` prints their tables,
with `--plots FOLDER` also the figures.
"""

import argparse
import json
import multiprocessing
import os
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from flag_types import parse_count, parse_count_or_zero
from gpu_runs import Run, finish_runs, prepare_runs, sleep_while_waiting
from result_files import read_results
from run_archives import RUN_FILES, pack_runs, unpack_runs

from nsde_policy.assets import find_demos
from nsde_policy.errors import ConfigError, MissingDependencyError, NsdePolicyError
from nsde_policy.eval.compare.entries import Entry, Episodes
from nsde_policy.eval.compare.plots import draw_comparison
from nsde_policy.eval.compare.result import ACTIONS, Comparison
from nsde_policy.eval.compare.run import add_latency, read_latency
from nsde_policy.eval.compare.table import format_comparison
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.evaluate import change_sampling
from nsde_policy.eval.latency import Contender, device_name, encode_latencies, measure_latency
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import load_model
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.presets import resolve_preset

ADROIT = ("adroit-door", "adroit-hammer", "adroit-pen", "adroit-relocate")
EPISODES = {"avoiding": 480, **dict.fromkeys(ADROIT, 100)}
"""Tasks, and how many starts are played."""
SMALL = ("neural_sde", "regression", "mip", "flow")
"""Methods that are trained several times, and together."""
DDIM = ("scheduler=ddim", "steps=10")
ROWS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    **{method: (method, None, ()) for method in SMALL},
    "flow, sampled start": ("flow", None, ("start=1",)),
    "knn": ("knn", None, ()),
    "bet": ("bet", None, ()),
    "lstm_gmm": ("lstm_gmm", None, ()),
    "lstm_gmm, full noise": ("lstm_gmm", None, ("noise=full",)),
    "ibc": ("ibc", None, ()),
    "diffusion, small, DDPM-100": ("diffusion", "small", ()),
    "diffusion, small, DDIM-10": ("diffusion", "small", DDIM),
    "diffusion, DDPM-100": ("diffusion", None, ()),
    "diffusion, DDIM-10": ("diffusion", None, DDIM),
}
"""Rows of the tables: method, preset (None for the task's default) and changes to its sampling."""
PLAYED_ON = "machine.json"


@dataclass(frozen=True)
class Play:
    """An evaluation: a trained run, and how it is sampled."""

    task: str
    name: str
    seed: int
    chunk: int | None = None
    """Actions executed before planning again; None for those of the preset."""

    @property
    def folder(self) -> str:
        """Folder of the run, which rows with other sampling share."""
        method, preset, _ = ROWS[self.name]
        return f"{self.task}/{'-'.join(filter(None, (method, preset, str(self.seed))))}"


class Suite:
    """The plays of a call, their runs, and the files of their results."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.stop_at = args, time.monotonic() + args.limit_s
        self.plays = [
            Play(task, name, seed, chunk)
            for task in args.tasks
            for name in ROWS
            if any(fnmatch(name, pattern) for pattern in args.rows)
            for seed in range(args.seeds if ROWS[name][0] in SMALL else args.large_seeds)
            for chunk in args.chunks or [None]
        ]

    def starts(self, task: str) -> range:
        first = self.args.seed_start
        return range(first, first + (self.args.episodes or EPISODES[task]))

    def entry_folder(self, task: str) -> Path:
        """Return the folder of the entries of a task on the starts of this call."""
        starts = self.starts(task)
        return self.args.out / "entries" / task / f"{starts[0]}-{starts[-1]}"

    def entry_file(self, play: Play) -> Path:
        chunk = "" if play.chunk is None else f", chunk {play.chunk}"
        return self.entry_folder(play.task) / f"{play.name}, {play.seed}{chunk}.json"

    def is_played(self, play: Play) -> bool:
        """Return whether a play has an entry, of the run as it is trained now."""
        file, path = self.entry_file(play), self.args.out / "runs" / play.folder
        if not file.exists():
            return False
        entry = msgspec.json.decode(file.read_bytes(), type=Entry)
        config = RunDirectory(path).read_record().config
        sampling = change_sampling(config.model.sampling, ROWS[play.name][2]).to_dict()
        parameters = json.loads((path / "training.json").read_text())["parameters"]
        now = (config.train.steps, parameters, sampling)
        return (entry.train_steps, entry.parameters, entry.sampling) == now

    def demos(self, task: str) -> Path:
        if task not in ADROIT:
            return find_demos(task)
        if self.args.demos is None:
            raise ConfigError(f"{task} needs the folder of its store: give --demos")
        return self.args.demos / f"{task.replace('-', '_')}_expert.zarr"

    @cache  # noqa: B019, one object lives as long as the program
    def config(self, task: str, name: str) -> RunConfig:
        """Return the settings of a row's runs, with as many steps as the budget allows."""
        method, preset, _ = ROWS[name]
        _, config = resolve_preset(get_task(task), preset, method, demos=self.demos(task), selection={})
        examples = self.args.examples
        if config.train.steps == 1 or not examples:
            return config
        return config.replace_parts(train={"steps": max(round(examples / config.train.batch_size), 1)})

    def make_runs(self) -> dict[str, Run]:
        """Return the runs of all plays by folder."""
        args = self.args
        return {
            play.folder: Run(
                args.out / "runs" / play.folder,
                self.config(play.task, play.name),
                seed=play.seed,
                demos=self.demos(play.task),
                device=args.device,
                task=play.task,
                stop_at=self.stop_at,
            )
            for play in reversed(self.plays)
        }

    def train(self) -> Iterator[str]:
        """Yield the folders of trained runs: finished ones, then small ones, then large ones."""
        if "train" not in self.args.only:
            for folder in dict.fromkeys(play.folder for play in self.plays):
                if all((self.args.out / "runs" / folder / file).exists() for file in RUN_FILES):
                    yield folder
            return
        runs = self.make_runs()
        folders = {id(run): folder for folder, run in runs.items()}
        small = {play.folder for play in self.plays if ROWS[play.name][0] in (*SMALL, "knn")}
        todo = prepare_runs(list(runs.values()))
        yield from (folder for folder, run in runs.items() if run not in todo)
        for is_small, parallel in ((True, self.args.parallel), (False, self.args.parallel_large)):
            chosen = [run for run in todo if (folders[id(run)] in small) == is_small]
            yield from (folders[id(run)] for run in finish_runs(chosen, parallel))

    def write(self) -> None:
        """Write results.json from the entries that exist."""
        parts = []
        for task in EPISODES:
            folder = self.entry_folder(task)
            files = [file for file in sorted(folder.glob("*.json")) if file.name != PLAYED_ON]
            if files:
                parts.append(f"{json.dumps(task)}: {self._compare(task, files).to_json()}")
        if parts:
            replace_file(self.args.out / "results.json", f"{{{','.join(parts)}}}".encode())

    def _compare(self, task: str, files: Sequence[Path]) -> Comparison:
        entries = [msgspec.json.decode(file.read_bytes(), type=Entry) for file in files]
        entries.sort(key=lambda entry: [*ROWS].index(entry.name))
        if self.args.untimed:
            entries = [msgspec.structs.replace(entry, train_s=None) for entry in entries]
        starts = self.starts(task)
        found = Comparison(
            task=task,
            env_kwargs=dict(get_task(task).env_kwargs),
            seeds=(starts[0], starts[-1]),
            machine=self._list_machines(task),
            entries=tuple(entries),
        )
        latency = self.args.out / f"latency-{task}.json"
        return add_latency(found, read_latency(latency)) if latency.exists() else found

    def _list_machines(self, task: str) -> dict[str, str]:
        """Return where the runs of a task were trained and played."""
        notes = (self.args.out / "runs" / task).glob("*/training.json")
        trained = sorted({json.loads(note.read_text())["device"] for note in notes})
        played = self.entry_folder(task) / PLAYED_ON
        return {"train": " and ".join(trained), **(json.loads(played.read_text()) if played.exists() else {})}


def play_and_save(play: Play, path: Path, seeds: range, file: Path, device: str, workers: int) -> None:
    """Play episodes of a run and save their entry in a file."""
    torch.set_num_threads(1)
    run = RunDirectory(path)
    policy = Policy.from_pretrained(run.path)
    config = policy.record.config
    method, preset, changes = ROWS[play.name]
    sampling, chunk = change_sampling(config.model.sampling, changes), play.chunk or policy.chunk
    policy.check_chunk(chunk)
    rollouts = RolloutConfig(sampling=sampling, chunk=chunk)
    pool = RolloutPool(run.path, rollouts, workers=workers)
    if device != "cpu":
        pool = RolloutPool(run.path, rollouts, device=device, batch=len(seeds))
    try:
        results = list(pool.evaluate(seeds))
    except MissingDependencyError as error:
        print(f"{play.task} cannot be played here: {error}", flush=True)
        return
    note = json.loads((run.path / "training.json").read_text())
    task = get_task(play.task)
    entry = Entry(
        name=play.name,
        title=METHODS.get(method).title,
        method=method,
        preset=preset or task.default_preset,
        train_seed=play.seed,
        demos=policy.record.demos.episodes,
        chunk=chunk,
        sampling=sampling.to_dict(),
        condition=Condition(),
        parameters=note["parameters"],
        train_steps=config.train.steps,
        train_s=round(note["step_s"] * config.train.steps, 5),
        calls_per_chunk=policy.model.network_calls(chunk, sampling) * ACTIONS / chunk,
        latency_ms=None,
        episodes=Episodes.from_results(results, task),
    )
    add_machine(file.with_name(PLAYED_ON), {"play": device_name(device), "torch": str(torch.__version__)})
    replace_file(file, entry.to_json().encode())
    won = sum(bool(result.success) for result in results) / len(results)
    print(f"{play.task}, {play.name}, {play.seed}, chunk {chunk}: success {won:.3f}", flush=True)


def add_machine(file: Path, machine: dict[str, str]) -> None:
    """Write where episodes were played, beside the machines of earlier calls."""
    found = json.loads(file.read_text()) if file.exists() else {}
    for name, value in machine.items():
        others = [other for other in found.get(name, "").split(" and ") if other not in ("", value)]
        found[name] = " and ".join([*others, value])
    replace_file(file, json.dumps(found).encode())


def train_and_play(suite: Suite) -> None:
    """Train what is missing and play what is trained, until all is done or the time is up."""
    args, jobs = suite.args, list[Future[None]]()
    players = ProcessPoolExecutor(args.players, multiprocessing.get_context("spawn"))
    try:
        for folder in suite.train():
            for play in suite.plays if "play" in args.only else ():
                if play.folder == folder and not suite.is_played(play):
                    file, path = suite.entry_file(play), args.out / "runs" / folder
                    starts = suite.starts(play.task)
                    job = players.submit(play_and_save, play, path, starts, file, args.device, args.workers)
                    job.add_done_callback(lambda _: suite.write())
                    jobs.append(job)
        _, unfinished = wait(jobs, timeout=max(suite.stop_at - time.monotonic(), 0))
        if unfinished:
            print(f"{len(unfinished)} evaluations are left for the next call", flush=True)
    finally:
        players.shutdown(wait=False, cancel_futures=True)
        suite.write()
    for job in jobs:
        if job.done() and not job.cancelled():
            job.result()
    if unfinished:
        os._exit(0)  # do not wait for unfinished episodes


def time_plans(suite: Suite) -> None:
    """Time one training of every row on one CPU thread, in turns."""
    for task in suite.args.tasks:
        contenders = dict[str, Contender]()
        for play in suite.plays:
            run = RunDirectory(suite.args.out / "runs" / play.folder)
            if play.task == task and play.seed == 0 and run.model.exists():
                record, model = load_model(run)
                sampling = change_sampling(record.config.model.sampling, ROWS[play.name][2])
                contenders[play.name] = Contender(play.name, record, model, sampling)
        if contenders:
            rows = measure_latency([*contenders.values()], rounds=suite.args.latency_rounds)
            replace_file(suite.args.out / f"latency-{task}.json", encode_latencies(rows).encode())
    suite.write()


def print_tables(results: Sequence[dict[str, Any]], plots: Path | None) -> None:
    """Print the tables of results, and draw their figures into a folder per task."""
    for found in results:
        for task, values in found.items():
            comparison = msgspec.convert(values, Comparison)
            print(f"{format_comparison(comparison)}\n")
            if plots is not None:
                draw_comparison(comparison, plots / task)


def run_suite(args: argparse.Namespace) -> None:
    """Pack, or unpack, train, play and time, as the flags say."""
    suite = Suite(args)
    if args.pack:
        folders = dict.fromkeys(play.folder for play in suite.plays if play.name != "knn")
        pack_runs(args.out / "runs", [*folders], args.pack)
        return
    unpack_runs(args.unpack, args.out / "runs", tasks=[*EPISODES])
    torch.backends.cudnn.benchmark = True
    if args.device.startswith("cuda"):
        sleep_while_waiting()
    if "latency" in args.only:
        time_plans(suite)
    if {"train", "play"} & {*args.only}:
        train_and_play(suite)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, count, or_zero = parser.add_argument, parse_count, parse_count_or_zero
    add("--demos", type=Path, help="folder of the stores of Adroit")
    add("--out", type=Path, default=Path("out/tasks"))
    add("--tasks", nargs="+", default=[*EPISODES], choices=[*EPISODES])
    add("--rows", nargs="+", default=["*"], help="rows, like 'diffusion, small*'")
    add("--only", nargs="+", default=["train", "play"], choices=["train", "play", "latency"])
    add("--examples", type=float, default=12.8e6, help="budget; 0 for the presets' steps")
    add("--seeds", type=count, default=3, help="trainings of each small method")
    add("--chunks", nargs="*", type=count, default=[], help="actions before planning again")
    add("--large-seeds", type=count, default=1, help="trainings of the others")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--parallel", type=count, default=16, help="small runs trained at once")
    add("--parallel-large", type=count, default=1, help="other runs trained at once")
    add("--players", type=count, default=4, help="evaluations at once")
    add("--workers", type=count, default=1, help="processes of each evaluation on a CPU")
    add("--episodes", type=or_zero, default=0, help="starts; 0 for those of each task")
    add("--seed-start", type=or_zero, default=100_000)
    add("--latency-rounds", type=count, default=30)
    add("--untimed", action="store_true", help="no training times: the GPU had other jobs")
    add("--limit-s", type=float, default=1e9, help="seconds of this call")
    add("--pack", type=Path, help="only write finished runs into this folder")
    add("--unpack", nargs="*", type=Path, default=[], help="first add the runs of these files")
    add("--table", nargs="*", type=Path, help="only print the tables of these results")
    add("--plots", type=Path, help="with --table: draw figures into this folder")
    args = parser.parse_args()
    if args.table is not None:
        files = args.table or [args.out / "results.json"]
        print_tables([read_results(parser, file, "task", "entries") for file in files], args.plots)
        return
    if args.plots:
        parser.error("--plots draws the results of --table; give both")
    if not args.examples >= 0:
        parser.error(f"--examples: expected at least 0, got {args.examples:g}")
    for pattern in args.rows:
        if not any(fnmatch(name, pattern) for name in ROWS):
            parser.error(f"--rows: no row is called {pattern!r}; rows: {'; '.join(ROWS)}")
    for file in args.unpack:
        if not zipfile.is_zipfile(file):
            parser.error(f"--unpack: {file} is not a zip file; give files that --pack wrote")
    try:
        run_suite(args)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
