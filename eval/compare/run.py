"""Playing runs on the same starts, and timing them in turns: from run directories to a comparison."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.compare.entries import Entry, Episodes, Latency
from nsde_policy.eval.compare.result import ACTIONS, Comparison, merged, read_comparison
from nsde_policy.eval.compare.suite import less_demonstrations, preset_of
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.evaluate import change_sampling, evaluate_policy
from nsde_policy.eval.latency import MIN_ROUNDS, Contender, as_rows, device_name, measure_latency
from nsde_policy.eval.rollout import EpisodeResult, Trace
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import load_model
from nsde_policy.methods.registry import get_method
from nsde_policy.run_directory import RunDirectory, RunRecord, fingerprint
from nsde_policy.tasks import get_task

Watcher = Callable[[EpisodeResult, Trace], None]


@dataclass(frozen=True)
class Job:
    """A run to play."""

    run: Path
    detail: str = ""
    """Added to its name where it is sampled differently, such as "DDIM-10"."""
    sampling: tuple[str, ...] = ()
    """Changes to how actions are drawn, name=value."""


@dataclass(frozen=True)
class Games:
    """What is played, the same for all."""

    episodes: int = 50
    seed_start: int = 100_000
    reset_rule: str = "benchmark"

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seed_start < 0:
            raise ConfigError(
                f"need episodes >= 1 and seed_start >= 0, got {self.episodes} and {self.seed_start}"
            )

    def env_kwargs(self, record: RunRecord) -> dict[str, str]:
        """Return the keyword arguments of a run's environment: the reset rule, if its task has several."""
        return {"reset_rule": self.reset_rule} if "reset_rule" in get_task(record.task).env_kwargs else {}


def compare(
    jobs: Sequence[Job], games: Games, *, kept: Path, workers: int = 0, device: str = "cpu", rounds: int = 30
) -> Comparison:
    """Play every job on the same starts, then time all of them in turns on the CPU (`rounds` = 0: do not).

    What was played is kept in the folder `kept`, and not played again as long as weights and settings are
    the same.
    """
    if rounds and rounds < MIN_ROUNDS:
        raise ConfigError(f"timing takes at least {MIN_ROUNDS} rounds, got {rounds}; 0 leaves it out")
    records = checked_records(jobs)
    names = names_of(records)
    found = []
    for job in jobs:
        record, name = records[job.run], names[job.run] + (f", {job.detail}" if job.detail else "")
        played = _kept_or_played(job, games, record, kept, workers=workers, device=device)
        entry = replace(played.entries[0], name=name, preset=preset_of(record) or "custom")
        found.append(replace(played, entries=(entry,)))
    comparison = merged(found)
    if not rounds:
        return comparison
    return with_latency(comparison, _timed(jobs, records, comparison.entries, rounds))


def checked_records(jobs: Sequence[Job]) -> dict[Path, RunRecord]:
    """What the runs were made with; refuses, before the work, runs that cannot be compared."""
    records: dict[Path, RunRecord] = {}
    seen: set[tuple[Path, str]] = set()
    for job in jobs:
        if (job.run.resolve(), job.detail) in seen:
            raise ComparisonError(f"{job.run} is named twice; name each run once")
        seen.add((job.run.resolve(), job.detail))
        records[job.run] = record = RunDirectory(job.run).read_record()
        if get_task(record.task).env_id is None:
            raise ComparisonError(f"{job.run} was trained without a task: there is no environment to play in")
        _check_finished(job.run, record)
    tasks = {record.task for record in records.values()}
    if len(tasks) > 1:
        raise ComparisonError(f"runs of different tasks are not compared: {', '.join(sorted(tasks))}")
    return records


def _check_finished(run: Path, record: RunRecord) -> None:
    """Refuse a run that is known to have stopped early: final weights are compared."""
    steps = [int(metrics["step"]) for metrics in RunDirectory(run).read_metrics()]
    if steps and steps[-1] < record.config.train.steps:
        raise ComparisonError(
            f"{run} stopped at step {steps[-1]} of {record.config.train.steps}; finish it with train --resume"
        )


def names_of(records: Mapping[Path, RunRecord]) -> dict[Path, str]:
    """A name for each run: the same where settings are the same but for seed and number of demonstrations.

    The method, and the preset where it is not the default; the directory's name for other settings.
    """
    names: dict[Path, str] = {}
    settings: dict[str, Any] = {}
    owners: dict[tuple[str, int, int], Path] = {}
    for path, record in records.items():
        config = less_demonstrations(record.config)
        name = next((known for known, other in settings.items() if other == config), None)
        if name is None:
            name = _new_name(path, record)
            name = f"{name} ({path})" if name in settings else name
            settings[name] = config
        names[path] = name
        other = owners.setdefault((name, record.demos.episodes, record.seed), path)
        if other != path:
            raise ComparisonError(
                f"{other} and {path} cannot be told apart: same settings, training seed and number of "
                "demonstrations; leave one out"
            )
    return names


def _new_name(path: Path, record: RunRecord) -> str:
    preset = preset_of(record)
    if preset == "default":
        return record.config.method
    method, own = record.config.method, re.sub(rf"[-_]{record.seed}$", "", path.resolve().name)
    return f"{method}, {preset or ('custom' if own == method else own)}"


def _kept_or_played(
    job: Job, games: Games, record: RunRecord, kept: Path, *, workers: int, device: str
) -> Comparison:
    """One job's entry in a comparison of its own, which is also the file that keeps it."""
    try:
        return read_comparison(kept_file(job, games, record, kept))
    except ComparisonError:  # not played yet, or the file is damaged
        return play_and_keep(job, games, record, kept, workers=workers, device=device)


def kept_file(job: Job, games: Games, record: RunRecord, kept: Path) -> Path:
    """Where a job's entry is kept: another file for other weights, settings or games."""
    run = RunDirectory(job.run)
    settings = {
        "weights": fingerprint(run.read_weights()),
        "config": record.config.to_dict(),
        "sampling": job.sampling,
        **asdict(games),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return kept / f"{record.config.method}-{record.seed}-{digest[:16]}.json"


def play_and_keep(
    job: Job,
    games: Games,
    record: RunRecord,
    kept: Path,
    *,
    workers: int,
    device: str,
    watch: Watcher | None = None,
) -> Comparison:
    """Play a job and write its entry; `watch` is told all that happened in each episode."""
    played = _played(job, games, workers=workers, device=device, watch=watch)
    replace_file(kept_file(job, games, record, kept), played.to_json().encode())
    return played


def _played(job: Job, games: Games, *, workers: int, device: str, watch: Watcher | None) -> Comparison:
    record, model = load_model(RunDirectory(job.run))
    found = evaluate_policy(
        job.run,
        episodes=games.episodes,
        seed_start=games.seed_start,
        env_kwargs=games.env_kwargs(record),
        sampling=job.sampling,
        workers=workers,
        device=device,
        watch=watch,
    )
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
        train_s=training_seconds(RunDirectory(job.run)),
        calls_per_chunk=model.network_calls(config.chunk, sampling) * ACTIONS / config.chunk,
        latency_ms=None,
        episodes=Episodes.of(found.scores.episodes),
    )
    seeds = (games.seed_start, games.seed_start + games.episodes - 1)
    machine = {"play": device_name(device), "torch": torch.__version__}
    return Comparison(record.task, games.reset_rule, seeds, machine, (entry,))


def training_seconds(run: RunDirectory) -> float | None:
    """Time a run took to train, all its sessions together; None where no record of it was kept."""
    total = last = 0.0
    known = False
    for record in run.read_metrics():
        seconds, known = float(record.get("seconds", 0.0)), True
        total += last if seconds < last else 0.0
        last = seconds
    return total + last if known else None


def _timed(
    jobs: Sequence[Job], records: Mapping[Path, RunRecord], entries: Sequence[Entry], rounds: int
) -> list[dict[str, Any]]:
    """Latency of the first run of each name: it does not depend on the weights."""
    first = {entry.name: job for entry, job in reversed(list(zip(entries, jobs, strict=True)))}
    contenders = []
    for name, job in first.items():
        record, model = load_model(RunDirectory(job.run))
        sampling = change_sampling(record.config.model.sampling, job.sampling)
        contenders.append(Contender.build(name, records[job.run], model, sampling))
    return as_rows(measure_latency(contenders, rounds=rounds))


def with_latency(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> Comparison:
    """A comparison with latencies as `nsde-policy benchmark latency --json` lists them.

    A row fits entries of its name, or of its method, preset and sampling, that execute as many actions.
    """
    entries = []
    for entry in comparison.entries:
        fitting = [row for row in rows if _fits(row, entry)]
        if fitting:
            row = next((row for row in fitting if row["method"] == entry.name), fitting[0])
            entry = replace(entry, latency_ms=Latency(float(row["median_ms"]), float(row["p99_ms"])))
        entries.append(entry)
    machines = dict.fromkeys(str(row["machine"]) for row in rows)
    machine = {**comparison.machine, "latency": " and ".join(machines)}
    return replace(comparison, entries=tuple(entries), machine=machine)


def _fits(row: Mapping[str, Any], entry: Entry) -> bool:
    if (row["chunk"], row["actions"]) != (entry.chunk, ACTIONS):
        return False
    alike = (row["policy"], row["preset"], row["sampling"]) == (entry.method, entry.preset, entry.sampling)
    return row["method"] == entry.name or alike


def read_latency(path: Path) -> list[dict[str, Any]]:
    """The file that `nsde-policy benchmark latency --json` writes."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise ComparisonError(f"{path} cannot be read: {why}") from None
    kinds = {"method": str, "median_ms": float, "p99_ms": float, "policy": str, "preset": str}
    kinds |= {"sampling": dict, "machine": str, "chunk": int, "actions": int}
    rows = rows if isinstance(rows, list) else [None]
    for row in rows:
        if not isinstance(row, dict) or any(
            not isinstance(row.get(key), (int, float) if kind is float else kind)
            for key, kind in kinds.items()
        ):
            raise ComparisonError(f"{path} is no list of latencies, as benchmark latency --json writes it")
    return rows
