"""Roll out runs from the same seeds: from run directories to a comparison."""

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch

from nsde_policy.envs.scene import Scene
from nsde_policy.errors import ComparisonError
from nsde_policy.files import replace_file
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory, RunRecord

from ..machine import device_name
from ..names import choose_names
from ..rollouts.disturbances import Condition
from ..rollouts.episode import Trace, tabulate_results
from ..rollouts.runner import RolloutConfig, change_sampling
from ..rollouts.scores import score_rollouts
from .entries import Entry
from .result import ACTIONS, Comparison, merge_comparisons, read_comparison

DECIMALS = 5
"""Decimal places of numbers in result files."""


@dataclass(frozen=True)
class EntryCache:
    """Rolls out runs and caches their entries in a folder.

    A run is rolled out again only if its files, the settings or the seeds change, or its entry is damaged.
    """

    folder: Path
    config: RolloutConfig
    """Seeds, environment and sampling of all runs."""
    workers: int = 0
    device: str = "cpu"
    ray: str | None = None

    def path(self, run: Path, record: RunRecord) -> Path:
        """Return the file of a run's entry; its name depends on the run's files, settings and seeds."""
        task = self.config.find_task(record)
        settings = {
            "sampling": self.config.sampling,
            "chunk": self.config.chunk,
            "select": self.config.select,
            "episodes": self.config.episodes,
            "seed_start": self.config.seed_start,
            "env": task.env_id,
            "env_kwargs": dict(task.env_kwargs),
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for name, content in sorted(RunDirectory(run).pack().items()):
            digest.update(name.encode() + content)
        return self.folder / f"{record.config.method}-{record.seed}-{digest.hexdigest()[:16]}.json"

    def get(self, run: Path, record: RunRecord) -> Comparison:
        """Return a comparison with the run's entry only, from the cache if possible."""
        file = self.path(run, record)
        with suppress(ComparisonError):  # not rolled out yet, or the file is damaged
            return read_comparison(file)
        comparison = self._roll_out(run, record)
        replace_file(file, comparison.to_json())
        return comparison

    def _roll_out(self, run: Path, record: RunRecord) -> Comparison:
        """Roll out a run and return a comparison with its entry."""
        task, config = self.config.find_task(record), record.config
        scene = task.drawing.scene()
        scores = score_rollouts(
            run, self.config, workers=self.workers, device=self.device, traced=scene is not None, ray=self.ray
        )
        policy = Policy.from_pretrained(run).use_selection(self.config.select)
        chunk = self.config.chunk or config.chunk
        entry = Entry(
            name=config.method,
            title=get_method(config.method).title,
            method=config.method,
            train_seed=record.seed,
            demos=record.demos.episodes,
            chunk=chunk,
            sampling=change_sampling(policy.sampling, self.config.sampling).to_dict(),
            condition=Condition(),
            parameters=policy.count_parameters(),
            train_steps=config.train.steps,
            train_s=read_training_time(RunDirectory(run)),
            calls_per_chunk=round(scores.network_calls_per_chunk * ACTIONS / chunk, DECIMALS),
            episodes=tabulate_results(scores.episodes, task, decimals=DECIMALS),
            select=policy.rule.kind,
            frames="" if scene is None else encode_frames([each.trace for each in scores.episodes], scene),
        )
        return Comparison(
            task=task.name,
            env_kwargs=task.training.without_observations(task.env_kwargs),
            seeds=(self.config.seeds[0], self.config.seeds[-1]),
            machine={
                "play": "Ray" if self.ray else device_name(self.device),
                "torch": str(torch.__version__),
            },
            entries=(entry,),
        )


def compare_runs(runs: Sequence[Path], cache: EntryCache) -> Comparison:
    """Roll out every run from the same seeds, or read its entry from the cache."""
    records = load_records(runs, cache.config)
    names = choose_names(records)
    parts = []
    for run, record in records.items():
        comparison = cache.get(run, record)
        entry = msgspec.structs.replace(comparison.entries[0], name=names[run])
        parts.append(msgspec.structs.replace(comparison, entries=(entry,)))
    return merge_comparisons(parts)


def load_records(runs: Sequence[Path], config: RolloutConfig) -> dict[Path, RunRecord]:
    """Load the records of all runs; raise if they cannot be compared in the environment of the rollouts."""
    records: dict[Path, RunRecord] = {}
    tasks: set[str] = set()
    for run in runs:
        records[run] = record = RunDirectory(run).read_record()
        task = config.find_task(record)
        tasks.add(task.name)
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
    for stage in (run, run.encoder):
        last = 0.0
        for record in stage.read_metrics():
            seconds, logged = float(record.get("seconds", 0.0)), True
            total += last if seconds < last else 0.0
            last = seconds
        total += last
    return round(total, DECIMALS) if logged else None


def encode_frames(traces: Sequence[Trace], scene: Scene) -> str:
    """Encode the observations and the progress of all episodes, concatenated, for the player of a report.

    They are integers, as many per unit as the scene says: column by column, differences between frames,
    deflated, in base64. Browsers decode this without a library. 200 episodes of 300 steps with five values
    take about 300 kB.
    """
    values = [np.column_stack([trace.obs, np.array(trace.progress, float)]) for trace in traces]
    rounded = np.rint(np.concatenate(values) * scene.scales)
    frames = np.clip(rounded, -(2**15), 2**15 - 1).astype(np.int16)
    changes = np.diff(frames, axis=0, prepend=np.zeros((1, frames.shape[1]), np.int16))
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    raw = deflate.compress(changes.T.astype("<i2").tobytes()) + deflate.flush()
    return base64.b64encode(raw).decode()
