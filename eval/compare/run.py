"""Roll out runs from the same seeds and time them in turns: from run directories to a comparison."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.compare.entries import DECIMALS, Entry, Episodes, Latency
from nsde_policy.eval.compare.files import merge_comparisons, read_comparison
from nsde_policy.eval.compare.result import ACTIONS, Comparison
from nsde_policy.eval.compare.suite import find_preset, ignore_demo_count
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.evaluate import EvaluationConfig, change_sampling, evaluate_policy
from nsde_policy.eval.latency import MIN_ROUNDS, Contender, LatencyRow, device_name, measure_latency
from nsde_policy.eval.rollout import EpisodeResult
from nsde_policy.files import MAX_JSON_BYTES, decode_json, read_file, replace_file
from nsde_policy.inference.loading import load_encoder, load_model
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory, RunRecord, fingerprint
from nsde_policy.tasks import get_task_of_run


@dataclass(frozen=True)
class Job:
    """A run to roll out, and how it is sampled."""

    run: Path
    detail: str = ""
    """Added to its name if it is sampled differently, such as "DDIM-10"."""
    sampling: tuple[str, ...] = ()
    """Changes to the sampling settings, name=value."""


@dataclass(frozen=True)
class EntryCache:
    """Rolls out jobs and caches their entries in a folder.

    A job is rolled out again only if its weights, its settings or the seeds change, or its file is damaged.
    """

    folder: Path
    config: EvaluationConfig
    """Seeds and environment of all jobs."""
    workers: int = 0
    device: str = "cpu"

    def path(self, job: Job, record: RunRecord) -> Path:
        """Return the file of a job's entry; its name depends on weights, settings and seeds."""
        task = self.config.find_task(record)
        folders = [job.run, *([job.run / ENCODER_FOLDER] if record.cameras else [])]
        settings = {
            "weights": "".join(fingerprint(RunDirectory(folder).read_weights()) for folder in folders),
            "config": record.config.to_dict(),
            "sampling": job.sampling,
            "episodes": self.config.episodes,
            "seed_start": self.config.seed_start,
            "env": task.env_id,
            "env_kwargs": dict(task.env_kwargs),
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{record.config.method}-{record.seed}-{digest[:16]}.json"

    def get(self, job: Job, record: RunRecord) -> Comparison:
        """Return a comparison with the job's entry only, from the cache if possible."""
        try:
            return read_comparison(self.path(job, record))
        except ComparisonError:  # not rolled out yet, or the file is damaged
            self.roll_out(job, record)
        return read_comparison(self.path(job, record))

    def roll_out(self, job: Job, record: RunRecord, *, traced: bool = False) -> list[EpisodeResult]:
        """Roll out a job, cache its entry and return the episodes, with their traces if `traced`."""
        chosen, task = replace(self.config, sampling=job.sampling), self.config.find_task(record)
        evaluation = evaluate_policy(job.run, chosen, workers=self.workers, device=self.device, traced=traced)
        _, model = load_model(RunDirectory(job.run))
        config = record.config
        sampling = change_sampling(config.model.sampling, job.sampling)
        entry = Entry(
            name=config.method,
            title=get_method(config.method).title,
            method=config.method,
            preset="",
            train_seed=record.seed,
            demos=record.demos.episodes,
            chunk=config.chunk,
            sampling=sampling.to_dict(),
            condition=Condition(),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            train_steps=config.train.steps,
            train_s=read_training_time(RunDirectory(job.run)),
            calls_per_chunk=model.network_calls(config.chunk, sampling) * ACTIONS / config.chunk,
            latency_ms=None,
            episodes=Episodes.from_results(evaluation.scores.episodes, task),
        )
        seeds = (chosen.seeds[0], chosen.seeds[-1])
        machine = {"play": device_name(self.device), "torch": str(torch.__version__)}
        env_kwargs = task.training.without_observations(task.env_kwargs)
        played = Comparison(task.name, env_kwargs, seeds, machine, (entry,))
        replace_file(self.path(job, record), played.to_json())
        return evaluation.scores.episodes


def compare_runs(jobs: Sequence[Job], cache: EntryCache, *, rounds: int = 30) -> Comparison:
    """Roll out every job from the same seeds, then time all in turns on the CPU, unless `rounds` is 0."""
    if rounds and rounds < MIN_ROUNDS:
        raise ConfigError(f"timing takes at least {MIN_ROUNDS} rounds, got {rounds}; 0 leaves it out")
    records = load_records(jobs, env=cache.config.env)
    names = choose_names(records)
    parts = []
    for job in jobs:
        record, name = records[job.run], names[job.run] + (f", {job.detail}" if job.detail else "")
        found = cache.get(job, record)
        preset = find_preset(record) or "custom"
        entry = msgspec.structs.replace(found.entries[0], name=name, preset=preset)
        parts.append(msgspec.structs.replace(found, entries=(entry,)))
    comparison = merge_comparisons(parts)
    if not rounds:
        return comparison
    return add_latency(comparison, _time_jobs(jobs, comparison.entries, rounds))


def load_records(jobs: Sequence[Job], *, env: str | None = None) -> dict[Path, RunRecord]:
    """Load the records of all runs; raise `ComparisonError` for runs that cannot be compared.

    Args:
        jobs: Runs to compare.
        env: Task or environment; None for the one that each run was trained for.
    """
    records: dict[Path, RunRecord] = {}
    tasks: set[str] = set()
    known: set[tuple[Path, str]] = set()
    for job in jobs:
        if (job.run.resolve(), job.detail) in known:
            raise ComparisonError(f"{job.run} is named twice; name each run once")
        known.add((job.run.resolve(), job.detail))
        records[job.run] = record = RunDirectory(job.run).read_record()
        task = get_task_of_run(record, env)
        tasks.add(task.name)
        if task.env_id is None:
            raise ComparisonError(
                f"{job.run} was trained without a task, so it has no environment to play in: give one with "
                "--env, or score it on recorded episodes with --demos STORE"
            )
        if (stopped := RunDirectory(job.run).describe_unfinished()) is not None:
            raise ComparisonError(stopped)
    if len(tasks) > 1:
        raise ComparisonError(
            f"runs of different tasks cannot be compared: {', '.join(sorted(tasks))}; choose runs of one "
            "task, or give the environment with --env"
        )
    return records


def choose_names(records: Mapping[Path, RunRecord]) -> dict[Path, str]:
    """Name each run; runs that differ only in seed and number of demonstrations get the same name.

    The name is the method, with the preset unless it is the default, or with the directory's name for
    settings that are not a preset. Runs on as many, but other, demonstrations have different names.
    """
    names: dict[Path, str] = {}
    settings: dict[str, RunConfig] = {}
    data: dict[tuple[str, int], str] = {}
    owners: dict[tuple[str, int, int], Path] = {}
    for path, record in records.items():
        config, demos = ignore_demo_count(record.config), record.demos
        alike = (known for known, other in settings.items() if other == config)
        found = (n for n in alike if data.get((n, demos.episodes), demos.fingerprint) == demos.fingerprint)
        name = next(found, None)
        if name is None:
            name = _make_name(path, record)
            name = f"{name} ({path})" if name in settings else name
            settings[name] = config
        names[path] = name
        data[name, demos.episodes] = demos.fingerprint
        other = owners.setdefault((name, demos.episodes, record.seed), path)
        if other != path:
            raise ComparisonError(
                f"{other} and {path} cannot be told apart: same settings, training seed and demonstrations; "
                "leave one out"
            )
    return names


def _make_name(path: Path, record: RunRecord) -> str:
    preset, method = find_preset(record), record.config.method
    if preset == "default":
        return method
    folder = re.sub(rf"[-_]{record.seed}$", "", path.resolve().name)
    folder = re.sub(rf"^(.*-)?{re.escape(method)}-", "", folder)  # as `train` and the suite name directories
    return f"{method}, {preset or ('custom' if folder == method else folder)}"


def read_training_time(run: RunDirectory) -> float | None:
    """Return the training time of a run over all its sessions, seconds; None without a log.

    It includes the training of an encoder of images.
    """
    total, logged = 0.0, False
    for stage in (run, RunDirectory(run.path / ENCODER_FOLDER)):
        last = 0.0
        for record in stage.read_metrics():
            seconds, logged = float(record.get("seconds", 0.0)), True
            total += last if seconds < last else 0.0
            last = seconds
        total += last
    return round(total, DECIMALS) if logged else None


def _time_jobs(jobs: Sequence[Job], entries: Sequence[Entry], rounds: int) -> list[LatencyRow]:
    """Time the first run of each name: latency does not depend on the weights."""
    first = {entry.name: job for entry, job in reversed(list(zip(entries, jobs, strict=True)))}
    contenders = []
    for name, job in first.items():
        run = RunDirectory(job.run)
        record, model = load_model(run)
        sampling = change_sampling(record.config.model.sampling, job.sampling)
        contenders.append(Contender(name, record, model, sampling, encoder=load_encoder(run, record)))
    return measure_latency(contenders, rounds=rounds)


def add_latency(comparison: Comparison, rows: Sequence[LatencyRow]) -> Comparison:
    """Return a comparison with the latencies of all entries that a row matches.

    The chunk must be the same, and either the name, which takes precedence, or method, preset and sampling.
    """
    by_name = {(row.method, row.chunk): row for row in rows if row.actions == ACTIONS}
    entries = []
    for entry in comparison.entries:
        wanted = (entry.method, entry.preset, entry.sampling, entry.chunk)
        alike = (
            row for row in by_name.values() if (row.policy, row.preset, row.sampling, row.chunk) == wanted
        )
        row = by_name.get((entry.name, entry.chunk)) or next(alike, None)
        if row is not None:
            entry = msgspec.structs.replace(entry, latency_ms=Latency(row.median_ms, row.p99_ms))
        entries.append(entry)
    machines = dict.fromkeys(row.machine for row in rows)
    machine = {**comparison.machine, "latency": " and ".join(machines)}
    return msgspec.structs.replace(comparison, entries=tuple(entries), machine=machine)


def read_latency(path: Path) -> list[LatencyRow]:
    """Read the file that `nsde-policy benchmark latency --json` writes."""
    content = read_file(path, MAX_JSON_BYTES, error=ComparisonError)
    try:
        return msgspec.convert(decode_json(content), list[LatencyRow])
    except ValueError as error:  # msgspec's ValidationError is one
        raise ComparisonError(
            f"{path} is not a list of latencies; expected the output of benchmark latency --json: {error}"
        ) from None
