"""Train the policies of an experiment, roll them out and time them: see benchmarks/suite.py."""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed, wait
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import torch
from experiment import MAIN, REPORTED, SMOKE, TUNING, Rollouts, Training, list_rollouts
from image_runs import train_with_images
from state_runs import NOTE_FILE, Run, finish_runs, prepare_runs, sleep_while_waiting

from nsde_policy.errors import ConfigError, MissingDependencyError
from nsde_policy.eval.compare.entries import Entry, Episodes
from nsde_policy.eval.compare.plots import draw_comparison
from nsde_policy.eval.compare.result import ACTIONS, Comparison
from nsde_policy.eval.compare.run import add_latency
from nsde_policy.eval.compare.table import format_comparison
from nsde_policy.eval.evaluate import EvaluationConfig, change_sampling, evaluate_policy
from nsde_policy.eval.generate import GenerateConfig, generate
from nsde_policy.eval.latency import Contender, LatencyRow, device_name, measure_latency
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import load_encoder, load_model
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_directory import RunDirectory

MACHINE_FILE = "machine.json"


class Suite:
    """The rows of a call, their runs, and the files of their results."""

    def __init__(self, values: dict[str, Any], args: argparse.Namespace) -> None:
        self.args = args
        self.stop_at = time.monotonic() + args.limit_s
        rows = list_rollouts(values, smoke=args.smoke)
        self.rows = [row for row in rows if self._is_chosen(row)]
        self.order = list(dict.fromkeys(row.name for row in rows))
        self.trainings = {row.training.folder: row.training for row in self.rows}
        first = TUNING if values.get("tuning") else REPORTED
        self.first_seed = first if args.seed_start is None else args.seed_start
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
        return range(self.first_seed, self.first_seed + (self.args.episodes or usual))

    def entry_folder(self, training: Training) -> Path:
        """Return the folder of the entries of a task on the seeds and in the environment of this call."""
        seeds = self.seeds(training)
        changed = "".join(f" {key}={value}" for key, value in self.args.env_kwargs.items())
        task = Path(training.folder).parent
        folder: Path = self.args.out / "entries" / task / f"{seeds[0]}-{seeds[-1]}{changed}"
        return folder

    def entry_file(self, row: Rollouts) -> Path:
        """Return the file of the entry of a row."""
        return self.entry_folder(row.training) / row.file

    def is_played(self, row: Rollouts) -> bool:
        """Return whether a row has an entry, of the run as it is trained now."""
        file, path = self.entry_file(row), self.run_path(row.training)
        if not file.exists():
            return False
        entry = msgspec.json.decode(file.read_bytes(), type=Entry)
        config = RunDirectory(path).read_record().config
        sampling = change_sampling(config.model.sampling, row.sampling).to_dict()
        parameters = json.loads((path / NOTE_FILE).read_text())["parameters"]
        return (entry.train_steps, entry.parameters, entry.sampling) == (
            config.train.steps,
            parameters,
            sampling,
        )

    def train(self) -> Iterator[str]:
        """Yield the folders of trained runs: finished, small, large ones, then ones with cameras."""
        if "train" not in self.args.only:
            for folder, training in self.trainings.items():
                if (self.run_path(training) / NOTE_FILE).exists():
                    yield folder
            return
        cameras = {folder: each for folder, each in self.trainings.items() if each.task.obs}
        runs = {
            folder: Run(
                self.run_path(training),
                training.make_config(self.demos(training)),
                seed=training.seed,
                demos=self.demos(training),
                device=self.args.device,
                task=training.task.name,
                stop_at=self.stop_at,
            )
            for folder, training in self.trainings.items()
            if folder not in cameras
        }
        todo = prepare_runs(list(runs.values()))
        yield from (folder for folder, run in runs.items() if run not in todo)
        for large, parallel in ((False, self.args.parallel), (True, 1)):
            chosen = {runs[f]: f for f in runs if runs[f] in todo and self.trainings[f].large == large}
            yield from (chosen[run] for run in finish_runs(list(chosen), parallel))
        yield from self._train_with_cameras(cameras)

    def _train_with_cameras(self, trainings: dict[str, Training]) -> Iterator[str]:
        """Train in processes; runs that take the encoder of another one come after all others."""
        count = min(self.args.parallel, self.args.parallel_cameras)
        for waits in (False, True):
            chosen = {f: each for f, each in trainings.items() if bool(each.encoder_of) == waits}
            yield from (f for f, each in chosen.items() if self._has_note(each))
            todo = {f: each for f, each in chosen.items() if not self._has_note(each)}
            until = time.time() + self.stop_at - time.monotonic()
            with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as processes:
                jobs = {
                    processes.submit(
                        train_with_images,
                        each,
                        self.run_path(each),
                        self.demos(each),
                        self.args.device,
                        until,
                        alone=count == 1,
                    ): folder
                    for folder, each in todo.items()
                }
                for job in as_completed(jobs):
                    if job.result():
                        yield jobs[job]

    def _has_note(self, training: Training) -> bool:
        return (self.run_path(training) / NOTE_FILE).exists()

    def write(self) -> dict[str, Comparison]:
        """Write results.json from the entries that exist."""
        found = {}
        for training in {each.task.name: each for each in self.trainings.values()}.values():
            folder = self.entry_folder(training)
            files = [file for file in sorted(folder.glob("*.json")) if file.name != MACHINE_FILE]
            if files:
                found[training.task.name] = self._compare(training, files)
        if found:
            parts = [f"{json.dumps(task)}: {each.to_json()}" for task, each in found.items()]
            replace_file(self.args.out / "results.json", f"{{{','.join(parts)}}}".encode())
        return found

    def _compare(self, training: Training, files: Sequence[Path]) -> Comparison:
        read = [msgspec.json.decode(file.read_bytes(), type=Entry) for file in files]
        # A variation may name a setting that is the preset's own: such rows are kept once.
        entries = list({(entry.setting, entry.train_seed): entry for entry in read}.values())
        entries.sort(key=lambda entry: self.order.index(entry.name) if entry.name in self.order else 0)
        if self.args.untimed:
            entries = [msgspec.structs.replace(entry, train_s=None) for entry in entries]
        task, seeds = training.task.make_task(), self.seeds(training)
        found = Comparison(
            task=training.task.name,
            env_kwargs=task.training.without_observations({**task.env_kwargs, **self.env_kwargs}),
            seeds=(seeds[0], seeds[-1]),
            machine=self._list_machines(training),
            entries=tuple(entries),
        )
        latency = self._latency_file(training)
        if not latency.exists():
            return found
        return add_latency(found, msgspec.json.decode(latency.read_bytes(), type=list[LatencyRow]))

    def _list_machines(self, training: Training) -> dict[str, str]:
        """Return where the runs of a task were trained and rolled out."""
        notes = self.run_path(training).parent.glob(f"*/{NOTE_FILE}")
        trained = sorted({json.loads(note.read_text())["device"] for note in notes})
        played = self.entry_folder(training) / MACHINE_FILE
        return {"train": " and ".join(trained), **(json.loads(played.read_text()) if played.exists() else {})}

    def _latency_file(self, training: Training) -> Path:
        name = Path(training.folder).parent.name
        path: Path = self.args.out / f"latency-{name}.json"
        return path

    def time_plans(self) -> None:
        """Time the first training of every row on one CPU thread, in turns."""
        for first in {each.task.name: each for each in self.trainings.values()}.values():
            contenders = dict[str, Contender]()
            for row in self.rows:
                run = RunDirectory(self.run_path(row.training))
                is_own = row.training.task == first.task and row.part == MAIN
                if is_own and row.training.seed == 0 and run.model.exists():
                    record, model = load_model(run)
                    sampling = change_sampling(record.config.model.sampling, row.sampling)
                    encoder = load_encoder(run, record)
                    contenders[row.name] = Contender(row.name, record, model, sampling, encoder=encoder)
            if contenders:
                rows = measure_latency([*contenders.values()], rounds=3 if self.args.smoke else 30)
                replace_file(self._latency_file(first), msgspec.json.encode(rows))
        self.write()

    def collect(self) -> None:
        """Make the stores of tasks whose demonstrations come from a scripted expert."""
        tasks = {each.task.name: each for each in self.trainings.values() if each.task.expert}
        for training in tasks.values():
            task, store = training.task, self.demos(training)
            if not store.exists():
                count = 4 if self.args.smoke else task.demonstrations
                config = GenerateConfig(count, env=task.name, only_success=task.only_success)
                kept = generate(task.expert, store, config, workers=self.args.workers)
                tried = kept[-1].seed + 1 - config.seed_start
                print(f"{task.name}: {len(kept)} of {tried} episodes of the expert are kept", flush=True)

    def train_and_play(self) -> None:
        """Train what is missing and roll out what is trained, until all is done or the time is up."""
        args, jobs = self.args, list[Future[None]]()
        players = ProcessPoolExecutor(args.players, multiprocessing.get_context("spawn"))
        try:
            for folder in self.train():
                for row in self.rows if "play" in args.only else ():
                    if row.training.folder == folder and not self.is_played(row):
                        job = players.submit(play_and_save, row, self.play_settings(row))
                        job.add_done_callback(lambda _: self.write())
                        jobs.append(job)
            _, unfinished = wait(jobs, timeout=max(self.stop_at - time.monotonic(), 0))
        finally:
            players.shutdown(wait=False, cancel_futures=True)
            self.write()
        for job in jobs:
            if job.done() and not job.cancelled():
                job.result()
        if unfinished:
            print(f"{len(unfinished)} rows are left for the next call", flush=True)
            sys.stdout.flush()
            os._exit(0)  # do not wait for unfinished rollouts

    def play_settings(self, row: Rollouts) -> dict[str, Any]:
        """Return what a process needs to roll out a row."""
        seeds = self.seeds(row.training)
        return {
            "path": self.run_path(row.training),
            "file": self.entry_file(row),
            "episodes": len(seeds),
            "seed_start": seeds[0],
            "env": row.training.task.name,
            "env_kwargs": {**row.training.task.make_task().env_kwargs, **self.env_kwargs},
            "workers": self.args.workers,
            "device": self.args.play_device or self.args.device,
        }


def play_and_save(row: Rollouts, settings: dict[str, Any]) -> None:
    """Roll out a row and save its entry in a file."""
    torch.set_num_threads(1)
    path, file = settings.pop("path"), settings.pop("file")
    training = row.training
    try:
        played = evaluate_policy(
            path,
            EvaluationConfig(
                settings["episodes"],
                settings["seed_start"],
                settings["env"],
                settings["env_kwargs"],
                row.chunk,
                tuple(row.sampling),
                row.condition,
                row.camera,
            ),
            workers=settings["workers"],
            device=settings["device"],
        )
    except MissingDependencyError as error:
        print(f"{training.task.name} cannot be rolled out here: {error}", flush=True)
        return
    record, model = load_model(RunDirectory(path))
    config, note = record.config, json.loads((path / NOTE_FILE).read_text())
    chunk, sampling = row.chunk or config.chunk, change_sampling(config.model.sampling, row.sampling)
    task = training.task.make_task()
    entry = Entry(
        name=row.name,
        title=METHODS.get(config.method).title,
        method=config.method,
        preset=training.preset or task.training.default_preset,
        train_seed=training.seed,
        demos=record.demos.episodes,
        chunk=chunk,
        sampling=sampling.to_dict(),
        condition=row.condition,
        parameters=note["parameters"],
        train_steps=config.train.steps,
        train_s=round(note["step_s"] * config.train.steps, 5),
        calls_per_chunk=model.network_calls(chunk, sampling) * ACTIONS / chunk,
        latency_ms=None,
        episodes=Episodes.from_results(played.scores.episodes, task),
    )
    device = device_name(settings["device"])
    add_machine(file.with_name(MACHINE_FILE), {"play": device, "torch": str(torch.__version__)})
    replace_file(file, entry.to_json().encode())
    print(f"{training.task.name}, {file.stem}: {format_score(entry)}", flush=True)


def format_score(entry: Entry) -> str:
    """Return success or score of an entry, for a line of progress."""
    episodes = entry.episodes
    if episodes.success is not None:
        return f"success {sum(episodes.success) / len(episodes):.3f}"
    return f"score {sum(episodes.score) / len(episodes):.3f}"


def add_machine(file: Path, machine: dict[str, str]) -> None:
    """Write where rows were rolled out, in addition to the machines of earlier calls."""
    found = json.loads(file.read_text()) if file.exists() else {}
    for name, value in machine.items():
        others = [other for other in found.get(name, "").split(" and ") if other not in ("", value)]
        found[name] = " and ".join([*others, value])
    replace_file(file, json.dumps(found).encode())


def run_rollouts(values: dict[str, Any], args: argparse.Namespace) -> None:
    """Collect, train, roll out and time, as the flags say; print the tables."""
    suite = Suite(values, args)
    if not suite.rows:
        raise ConfigError(f"no row is chosen by --rows, --parts, --tasks; rows: {'; '.join(suite.order)}")
    if not args.table:
        torch.backends.cudnn.benchmark = True
        if args.device.startswith("cuda"):
            sleep_while_waiting()
        if "collect" in args.only:
            suite.collect()
        if {"train", "play"} & {*args.only}:
            suite.train_and_play()
        if "latency" in args.only:
            suite.time_plans()
    for task, comparison in suite.write().items():
        print(f"{format_comparison(comparison)}\n")
        if args.plots:
            draw_comparison(comparison, args.plots / task)
