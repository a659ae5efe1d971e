"""Train the policies of an experiment and roll them out: see benchmarks/suite.py."""

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import torch
from experiment import SMOKE, Rollouts, TaskSetting, Training, list_rollouts
from policy_training import DEVICE_FILE, train_policy
from result_tables.demonstrations import tabulate_demonstrations
from result_tables.metaworld_camera import tabulate_tasks

from nsde_policy.assets import USUAL_OBSERVATIONS
from nsde_policy.data.readers import open_source
from nsde_policy.errors import ConfigError, DemoError, MissingDependencyError
from nsde_policy.eval.compare.result import Comparison, merge_comparisons, read_comparison
from nsde_policy.eval.compare.run import EntryCache
from nsde_policy.eval.compare.table import format_comparison
from nsde_policy.eval.demonstrator import CollectConfig, collect_demonstrations
from nsde_policy.eval.rollouts.executors import open_pool
from nsde_policy.eval.rollouts.runner import RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.run_directory import RunDirectory

TABLES = {"metaworld_camera": tabulate_tasks, "demonstrations": tabulate_demonstrations}
"""Tables of all tasks."""


class Suite:
    """The rows of a call, their runs, and the files of their results."""

    def __init__(self, values: dict[str, Any], args: argparse.Namespace) -> None:
        self.args = args
        self.stop_at = time.time() + args.limit_s
        rows = list_rollouts(values, smoke=args.smoke)
        self.rows = [row for row in rows if self._is_chosen(row)]
        self.order = list(dict.fromkeys(row.name for row in rows))
        self.trainings = {row.training.folder: row.training for row in self.rows}
        self.tasks = {row.training.task.name: row.training for row in rows}
        periods = {"max_episode_steps": SMOKE["periods"]} if args.smoke else {}
        self.env_kwargs = {**values.get("env_kwargs", {}), **args.env_kwargs, **periods}

    def _is_chosen(self, row: Rollouts) -> bool:
        args, training = self.args, row.training
        return (
            any(fnmatch(row.name, pattern) for pattern in args.rows)
            and (args.parts is None or row.part in args.parts)
            and (args.tasks is None or training.task.name in args.tasks)
            and (args.train_seeds is None or training.seed in args.train_seeds)
        )

    def run_path(self, training: Training) -> Path:
        """Return the run directory of a training."""
        path: Path = self.args.out / "runs" / training.folder
        return path

    def demos(self, training: Training) -> Path:
        """Return the store of a training; an expert's store is made in the output folder."""
        task = training.task
        return task.find_store(self.args.out / "demos" if task.expert else self.args.demos)

    def seeds(self, training: Training) -> range:
        """Return the seeds that a training is rolled out on."""
        usual = SMOKE["episodes"] if self.args.smoke else training.task.episodes
        first: int = self.args.seed_start
        return range(first, first + (self.args.episodes or usual))

    def entry_folder(self, training: Training) -> Path:
        """Return the folder of the rows of a task on the seeds and in the environment of this call."""
        seeds = self.seeds(training)
        changed = "".join(f" {key}={value}" for key, value in self.args.env_kwargs.items())
        task = Path(training.folder).parent
        folder: Path = self.args.out / "entries" / task / f"{seeds[0]}-{seeds[-1]}{changed}"
        return folder

    def entry_file(self, row: Rollouts) -> Path:
        """Return the file of a row: a comparison with one entry."""
        return self.entry_folder(row.training) / row.file

    def collect(self) -> bool:
        """Make the stores of scripted experts, several at once; return whether all was done in time."""
        tasks = {each.task.name: each for each in self.trainings.values() if each.task.expert}
        with open_pool(self.args.players) as processes:
            jobs = []
            for training in tasks.values():
                task = training.task
                config = CollectConfig(
                    episodes=SMOKE["demonstrations"] if self.args.smoke else task.demonstrations,
                    env=task.name,
                    only_success=task.only_success,
                    obs=task.obs,
                )
                store = self.demos(training)
                if count_episodes(store) < config.episodes:
                    jobs.append(processes.submit(collect_store, task, store, config))
            done, unfinished = wait(jobs, timeout=max(self.stop_at - time.time(), 0))
        for job in done:
            job.result()
        if unfinished:
            print(f"{len(unfinished)} stores are left for the next call", flush=True)
        return not unfinished

    def train(self) -> Iterator[str]:
        """Yield the folders of trained runs: finished, small, large ones, then ones with cameras.

        Runs that use the encoder of another one come last.
        """
        found, args = self.trainings, self.args
        done = [folder for folder, each in found.items() if (self.run_path(each) / DEVICE_FILE).exists()]
        yield from done
        todo = [folder for folder in found if folder not in done] if "train" in args.only else []
        later = [folder for folder in todo if found[folder].encoder_of]  # need an encoder of the others
        todo = [folder for folder in todo if folder not in later]
        cameras = [folder for folder in todo if found[folder].observations != USUAL_OBSERVATIONS]
        states = [folder for folder in todo if folder not in cameras]
        yield from self._train_group([f for f in states if not found[f].large], args.parallel)
        yield from self._train_group([f for f in states if found[f].large], 1)
        yield from self._train_group(cameras, args.parallel_cameras)
        bases = {folder: replace(found[folder], row=found[folder].encoder_of) for folder in later}
        ready = [folder for folder in later if (self.run_path(bases[folder]) / DEVICE_FILE).exists()]
        yield from self._train_group(ready, args.parallel_cameras)

    def _train_group(self, folders: list[str], count: int) -> Iterator[str]:
        """Train runs, `count` at a time, each in its own process; yield each run when it is finished.

        When the time is up, running trainings stop by themselves, and no other one begins.
        """
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, context, max_tasks_per_child=1) as processes:
            jobs = {}
            for folder in folders:
                each = self.trainings[folder]
                paths = self.run_path(each), self.demos(each)
                job = processes.submit(train_policy, each, *paths, self.args.device, self.stop_at)
                jobs[job] = folder
            pending = {*jobs}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for job in done:
                    if job.result():
                        print(f"{jobs[job]} is trained", flush=True)
                        yield jobs[job]
                if time.time() > self.stop_at:
                    pending = {job for job in pending if not job.cancel()}

    def train_and_play(self) -> bool:
        """Train what is missing and roll out what is trained; return whether all was done in time."""
        args, jobs = self.args, list[Future[None]]()
        with open_pool(args.players) as players:
            for folder in self.train():
                for row in self.rows if "play" in args.only else ():
                    if row.training.folder == folder and not self.entry_file(row).exists():
                        job = players.submit(play_row, row, self.make_cache(row), self.entry_file(row))
                        job.add_done_callback(lambda _: self.write())
                        jobs.append(job)
            done, unfinished = wait(jobs, timeout=max(self.stop_at - time.time(), 0))
        for job in done:
            job.result()
        if unfinished:
            print(f"{len(unfinished)} rows are left for the next call", flush=True)
        return not unfinished

    def make_cache(self, row: Rollouts) -> tuple[EntryCache, Path]:
        """Return what rolls out a row, and its run directory."""
        seeds, task = self.seeds(row.training), row.training.make_task()
        config = RolloutConfig(
            row.training.task.name,
            {**task.env_kwargs, **self.env_kwargs},
            len(seeds),
            seeds[0],
            row.chunk,
            tuple(row.sampling),
            row.condition,
            row.camera,
            row.select,
        )
        folder = self.entry_file(row).with_suffix("")
        device = self.args.play_device or self.args.device
        return EntryCache(folder, config, self.args.workers, device), self.run_path(row.training)

    def write(self) -> dict[str, Comparison]:
        """Write results.json from all rows that exist, those of other calls too, one comparison per task."""
        found = {}
        for training in self.tasks.values():
            files = sorted(self.entry_folder(training).glob("*.json"))
            if files:
                found[training.task.name] = self._merge(training, files)
        if found:
            parts = [f"{json.dumps(task)}: {each.to_json()}" for task, each in found.items()]
            replace_file(self.args.out / "results.json", f"{{{','.join(parts)}}}".encode())
        return found

    def _merge(self, training: Training, files: list[Path]) -> Comparison:
        # A variation may name a setting that is the preset's own: such rows are kept once.
        rows = {
            (each.entries[0].setting, each.entries[0].train_seed): each
            for each in map(read_comparison, files)
        }
        merged = merge_comparisons([*rows.values()])
        entries = sorted(
            merged.entries, key=lambda entry: self.order.index(entry.name) if entry.name in self.order else 0
        )
        if self.args.parallel > 1:  # runs shared the device
            entries = [msgspec.structs.replace(entry, train_s=None) for entry in entries]
        notes = self.run_path(training).parent.glob(f"*/{DEVICE_FILE}")
        machine = {"train": " and ".join(sorted({note.read_text() for note in notes})), **merged.machine}
        return msgspec.structs.replace(merged, entries=tuple(entries), machine=machine)


def count_episodes(store: Path) -> int:
    """Return the number of episodes of a store, 0 if it does not exist or holds none."""
    with suppress(DemoError), open_source(store) as source:
        return len(source.read_ends())
    return 0


def collect_store(task: TaskSetting, store: Path, config: CollectConfig) -> None:
    """Make or complete the store of a scripted expert."""
    episodes = collect_demonstrations(task.expert, store, config, workers=1)
    tried = episodes[-1].seed + 1 - config.seed_start
    print(f"{task.name}: {len(episodes)} of {tried} episodes of the expert are kept", flush=True)


def play_row(row: Rollouts, how: tuple[EntryCache, Path], file: Path) -> None:
    """Roll out a row and write its comparison."""
    torch.set_num_threads(1)
    cache, path = how
    training = row.training
    try:
        found = cache.get(path, RunDirectory(path).read_record())
    except MissingDependencyError as error:
        print(f"{training.task.name} cannot be rolled out here: {error}", flush=True)
        return
    entry = msgspec.structs.replace(
        found.entries[0],
        name=row.name,
        condition=row.condition,
        frames="",
    )
    replace_file(file, msgspec.structs.replace(found, entries=(entry,)).to_json())
    episodes = entry.episodes
    name, values = ("score", episodes.score) if episodes.success is None else ("success", episodes.success)
    print(f"{training.task.name}, {file.stem}: {name} {sum(values) / len(values):.3f}", flush=True)


def run_rollouts(values: dict[str, Any], args: argparse.Namespace) -> None:
    """Collect, train and roll out, as the flags say; print the tables."""
    suite = Suite(values, args)
    if not suite.rows:
        raise ConfigError(f"no row is chosen by --rows, --parts, --tasks; rows: {'; '.join(suite.order)}")
    if not args.table:
        if "collect" in args.only and not suite.collect():
            return
        if {"train", "play"} & {*args.only} and not suite.train_and_play():
            return
    comparisons = suite.write()
    if "table" in values:
        print(TABLES[values["table"]](comparisons))
        return
    for task in dict.fromkeys(row.training.task.name for row in suite.rows):
        if task in comparisons:
            print(f"{format_comparison(comparisons[task])}\n")
