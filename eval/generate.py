"""Demonstrations that a policy generates in the environment of its task."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nsde_policy.assets import SHIPPED, SHIPPED_POLICY
from nsde_policy.bounds import Count, Natural
from nsde_policy.config import BaseConfig
from nsde_policy.data import Episode
from nsde_policy.data.collection import Collection, EpisodeInfo, Provenance
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.errors import ConfigError
from nsde_policy.eval.evaluate import change_sampling
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import RunDirectory, find_versions, fingerprint
from nsde_policy.tasks import get_task_of_run

MAX_FAILURES = 100
"""Episodes in a row that may fail if only successes are kept."""
SEEDS = 2**32
"""Number of seeds; larger ones are used for the noise of pictures."""


@dataclass(frozen=True)
class GenerateConfig(BaseConfig):
    """Number, seeds and sampling of generated episodes."""

    episodes: Count
    """Number of episodes in the finished store."""
    seed_start: Natural = 300_000
    """First seed; consecutive ones are tried."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    only_success: bool = False
    """Leave out episodes that fail."""
    chunk: int | None = None
    """Actions executed before planning again; None for the policy's own."""
    sampling: tuple[str, ...] = ()
    """Changes to the sampling settings, name=value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.seed_start + self.episodes - 1
        if last >= SEEDS:
            raise ConfigError(f"seeds end at {SEEDS - 1}, got {last}: take a smaller --seed-start")


def generate(run: Path, out: Path, config: GenerateConfig, *, workers: int = 0) -> Sequence[EpisodeInfo]:
    """Play until the store `out` holds the requested number of episodes, and return all it holds.

    An episode depends on its seed alone, and seeds are tried in order: an interrupted run that is started
    again ends with the same store.
    """
    if workers < 0:
        raise ConfigError(f"workers must not be negative, got {workers}; 0 takes one per core")
    policy = Policy.from_pretrained(run)
    task = get_task_of_run(policy.record)
    sampling = change_sampling(policy.model.config.sampling, config.sampling)
    rollout = RolloutConfig(task, config.env_kwargs, config.chunk, sampling)
    chunk = policy.check_chunk(config.chunk or policy.chunk)
    task.make_env(**config.env_kwargs).close()  # fail before the store is made
    provenance = Provenance(
        by="policy",
        settings={
            "policy": fingerprint(RunDirectory(run).read_weights()),
            "method": policy.record.config.method,
            "sampling": sampling.to_dict(),
            "chunk": chunk,
            "env": task.env_id or task.name,
            **task.env_kwargs,
            **config.env_kwargs,
            "seed_start": config.seed_start,
            "only_success": config.only_success,
        },
        notes={
            "run": SHIPPED if run == SHIPPED_POLICY else str(run),
            "train_seed": policy.record.seed,
            "trained_on": policy.record.demos.fingerprint,
            "versions": find_versions(),
        },
    )
    with Collection(out, provenance, rate_hz=task.rate_hz, angles=task.demos.angles) as collection:
        missing = config.episodes - len(collection.episodes)
        if missing > 0:
            pool = RolloutPool(run, rollout, workers=min(workers or os.cpu_count() or 1, missing))
            try:
                _collect(collection, pool, config)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"interrupted; {out} holds {len(collection.episodes)} episodes, and the same command "
                    "continues"
                ) from None
        return collection.episodes


def _collect(collection: Collection, pool: RolloutPool, config: GenerateConfig) -> None:
    held = collection.episodes
    first = held[-1].seed + 1 if held else config.seed_start
    failed = 0
    with tqdm(
        desc="collecting", total=config.episodes, initial=len(held), unit="episode", leave=False, disable=None
    ) as bar:
        for result in pool.evaluate(itertools.count(first), traced=True):
            if result.steps < MIN_STEPS or (config.only_success and not result.success):
                failed += 1
                if failed >= MAX_FAILURES:
                    raise ConfigError(
                        f"{failed} episodes in a row failed, up to seed {result.seed}: this policy hardly "
                        "ever succeeds; without --only-success its failures are kept too"
                    )
                continue
            failed, trace = 0, result.trace
            episode = Episode(np.array(trace.obs[:-1], np.float32), np.array(trace.actions, np.float32))
            collection.add(episode, EpisodeInfo(result.seed, bool(result.success), result.score))
            bar.update()
            if len(collection.episodes) >= config.episodes:
                return
