"""Roll out runs from the same seeds and time them in turns: from run directories to a comparison."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.files import replace_file
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.policy import Policy
from nsde_policy.policy.selection import RULE_FILE
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import (
    ENCODER_FOLDER,
    SELECTION_FOLDER,
    RunDirectory,
    RunRecord,
    fingerprint,
)

from ..latency import MIN_ROUNDS, Contender, LatencyRow, device_name, measure_latency
from ..rollouts.disturbances import Condition
from ..rollouts.episode import EpisodeResult
from ..rollouts.runner import RolloutConfig, change_sampling
from ..rollouts.scores import score_rollouts
from .entries import DECIMALS, Entry, Episodes, Latency
from .result import ACTIONS, Comparison, merge_comparisons, read_comparison


@dataclass(frozen=True)
class EntryCache:
    """Rolls out runs and caches their entries in a folder.

    A run is rolled out again only if its weights, its settings or the seeds change, or its file is damaged.
    """

    folder: Path
    config: RolloutConfig
    """Seeds, environment and sampling of all runs."""
    workers: int = 0
    device: str = "cpu"
    ray: str | None = None

    def path(self, run: Path, record: RunRecord) -> Path:
        """Return the file of a run's entry; its name depends on weights, settings and seeds."""
        task = self.config.find_task(record)
        folders = [run, *([run / ENCODER_FOLDER] if record.cameras else [])]
        selects = (run / SELECTION_FOLDER / RULE_FILE).exists()
        folders += [run / SELECTION_FOLDER] if selects else []
        settings = {
            "weights": "".join(fingerprint(RunDirectory(folder).read_weights()) for folder in folders),
            "config": record.config.to_dict(),
            "sampling": self.config.sampling,
            "episodes": self.config.episodes,
            "seed_start": self.config.seed_start,
            "env": task.env_id,
            "env_kwargs": dict(task.env_kwargs),
            **({"select": self.config.select} if selects else {}),
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{record.config.method}-{record.seed}-{digest[:16]}.json"

    def get(self, run: Path, record: RunRecord) -> Comparison:
        """Return a comparison with the run's entry only, from the cache if possible."""
        file = self.path(run, record)
        try:
            return read_comparison(file)
        except ComparisonError:  # not rolled out yet, or the file is damaged
            self.roll_out(run, record)
        return read_comparison(file)

    def roll_out(self, run: Path, record: RunRecord, *, traced: bool = False) -> list[EpisodeResult]:
        """Roll out a run, cache its entry and return the episodes, with their traces if `traced`."""
        task = self.config.find_task(record)
        scores = score_rollouts(
            run, self.config, workers=self.workers, device=self.device, traced=traced, ray=self.ray
        )
        policy = Policy.from_pretrained(run).use_selection(self.config.select)
        config = record.config
        sampling = change_sampling(policy.sampling, self.config.sampling)
        chunk = self.config.chunk or config.chunk
        entry = Entry(
            name=config.method,
            title=get_method(config.method).title,
            method=config.method,
            preset="",
            train_seed=record.seed,
            demos=record.demos.episodes,
            chunk=chunk,
            sampling=sampling.to_dict(),
            condition=Condition(),
            parameters=policy.count_parameters(),
            train_steps=config.train.steps,
            train_s=read_training_time(RunDirectory(run)),
            calls_per_chunk=round(scores.network_calls_per_chunk * ACTIONS / chunk, DECIMALS),
            latency_ms=None,
            episodes=Episodes.from_results(scores.episodes, task),
            select=scores.rule,
            selected_share=round(scores.selected_share, DECIMALS),
        )
        seeds = (self.config.seeds[0], self.config.seeds[-1])
        machine = {"play": "Ray" if self.ray else device_name(self.device), "torch": str(torch.__version__)}
        env_kwargs = task.training.without_observations(task.env_kwargs)
        comparison = Comparison(task.name, env_kwargs, seeds, machine, (entry,))
        replace_file(self.path(run, record), comparison.to_json())
        return scores.episodes


def compare_runs(runs: Sequence[Path], cache: EntryCache, *, rounds: int = 30) -> Comparison:
    """Roll out every run from the same seeds, then time all in turns on the CPU, unless `rounds` is 0."""
    if rounds and rounds < MIN_ROUNDS:
        raise ConfigError(f"timing takes at least {MIN_ROUNDS} rounds, got {rounds}; 0 leaves it out")
    records = load_records(runs, cache.config)
    names = choose_names(records)
    parts = []
    for run, record in records.items():
        comparison = cache.get(run, record)
        preset = names[run].partition(", ")[2] or "default"
        entry = msgspec.structs.replace(comparison.entries[0], name=names[run], preset=preset)
        parts.append(msgspec.structs.replace(comparison, entries=(entry,)))
    comparison = merge_comparisons(parts)
    if not rounds:
        return comparison
    first = {name: run for run, name in reversed(names.items())}  # latency does not depend on the weights
    contenders = [Contender(name, Policy.from_pretrained(run)) for name, run in first.items()]
    return add_latency(comparison, measure_latency(contenders, rounds=rounds))


def load_records(runs: Sequence[Path], config: RolloutConfig) -> dict[Path, RunRecord]:
    """Load the records of all runs; raise if they cannot be compared in the environment of the rollouts."""
    records: dict[Path, RunRecord] = {}
    tasks: set[str] = set()
    if len({run.resolve() for run in runs}) < len(runs):
        raise ComparisonError("a run is named twice; name each run once")
    for run in runs:
        records[run] = record = RunDirectory(run).read_record()
        task = config.find_task(record)
        tasks.add(task.name)
        if task.env_id is None:
            raise ComparisonError(
                f"{run} was trained without a task, so it has no environment to roll out in: give one with "
                "--env, or use recorded episodes: `nsde-policy score` or `report` with --demos STORE"
            )
        if (stopped := RunDirectory(run).describe_unfinished()) is not None:
            raise ComparisonError(stopped)
    if len(tasks) > 1:
        raise ComparisonError(
            f"runs of different tasks cannot be compared: {', '.join(sorted(tasks))}; choose runs of one "
            "task, or give the environment with --env"
        )
    return records


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


def add_latency(comparison: Comparison, rows: Sequence[LatencyRow]) -> Comparison:
    """Return a comparison with the latencies of all entries that have the name and chunk of a row."""
    latencies = {(row.method, row.chunk): Latency(row.median_ms, row.p99_ms) for row in rows}
    entries = tuple(
        msgspec.structs.replace(entry, latency_ms=latencies.get((entry.name, entry.chunk), entry.latency_ms))
        for entry in comparison.entries
    )
    machines = dict.fromkeys(row.machine for row in rows)
    machine = {**comparison.machine, "latency": " and ".join(machines)}
    return msgspec.structs.replace(comparison, entries=entries, machine=machine)


def choose_names(records: Mapping[Path, RunRecord]) -> dict[Path, str]:
    """Name each run; runs that differ only in seed and number of demonstrations get the same name.

    Runs on as many, but other, demonstrations have different names.
    """
    names: dict[Path, str] = {}
    settings: dict[str, RunConfig] = {}
    data: dict[tuple[str, int], str] = {}
    owners: dict[tuple[str, int, int], Path] = {}
    for path, record in records.items():
        # how many demonstrations, and what training measures on them, makes no other name
        demo_config = replace(record.config.demos, episodes=0, first_action=(), accept_omitted_chunks=False)
        config, demos = replace(record.config, demos=demo_config), record.demos
        alike = (name for name, other in settings.items() if other == config)
        same = (n for n in alike if data.get((n, demos.episodes), demos.fingerprint) == demos.fingerprint)
        name = next(same, None)
        if name is None:
            name = ", ".join(filter(None, [record.config.method, _find_detail(path, record)]))
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


def _find_detail(path: Path, record: RunRecord) -> str:
    """Return what is special about a run: the preset in a directory TASK-METHOD-PRESET-SEED, or its name.

    It is empty for the preset `default`, and for the policies of this package.
    """
    if get_shipped_name(path) is not None:
        return ""
    folder = re.sub(rf"[-_]{record.seed}$", "", path.resolve().name)
    folder = re.sub(rf"^(.*-)?{re.escape(record.config.method)}-", "", folder)
    return "" if folder in ("default", record.config.method) else folder
