"""Demonstrations that a policy generates in the environment it was trained for."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nsde_policy.assets import SHIPPED, SHIPPED_POLICY
from nsde_policy.data import Episode
from nsde_policy.data.collection import Collection, Kept, Provenance
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.errors import ConfigError
from nsde_policy.eval.evaluate import changed_sampling
from nsde_policy.eval.pool import record
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import RunDirectory, fingerprint
from nsde_policy.tasks import get_task

PATIENCE = 100
"""Episodes in a row that may fail where only successes are kept."""
SEEDS = 2**32
"""Starts there are in Push-T."""


@dataclass(frozen=True)
class Wanted:
    """What is to be generated."""

    episodes: int
    """How many the store holds in the end."""
    seed_start: int = 300_000
    """First seed; they are tried one after the other."""
    reset_rule: str = "benchmark"
    only_success: bool = False
    """Leave out episodes that fail."""
    chunk: int | None = None
    """Actions executed before planning again; None for the policy's own."""
    sampling: tuple[str, ...] = ()
    """Changes to how actions are drawn, name=value."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.seed_start < 0:
            raise ConfigError(
                f"need episodes >= 1 and seed_start >= 0, got {self.episodes} and {self.seed_start}"
            )
        if self.seed_start + self.episodes > SEEDS:
            raise ConfigError(
                f"seeds end at {SEEDS - 1}, got {self.episodes} episodes from {self.seed_start} on: "
                "take a smaller --seed-start"
            )


def generate(run: Path, out: Path, wanted: Wanted, *, workers: int = 0) -> Sequence[Kept]:
    """Play until the store `out` holds as many episodes as wanted; returns all it holds.

    An episode depends on its seed alone, and seeds are tried in their order: stopped and started again, by
    whatever means, the store ends as it would have without.
    """
    if workers < 0:
        raise ConfigError(f"workers must not be negative, got {workers}; 0 takes one per core")
    policy = Policy.from_pretrained(run)
    config = _config(policy, run, wanted)
    policy.check_chunk(wanted.chunk or policy.chunk)
    with Collection.open(out, _provenance(policy, run, config, wanted)) as collection:
        missing = wanted.episodes - len(collection.episodes)
        if missing > 0:
            processes = min(workers or os.cpu_count() or 1, missing)
            try:
                _collect(collection, run, config, wanted, processes)
            except KeyboardInterrupt:
                held = len(collection.episodes)
                raise KeyboardInterrupt(
                    f"interrupted; {out} holds {held} episodes, and the same command goes on"
                ) from None
        return collection.episodes


def _collect(collection: Collection, run: Path, config: RolloutConfig, wanted: Wanted, workers: int) -> None:
    held = collection.episodes
    first = held[-1].seed + 1 if held else wanted.seed_start
    failed = 0
    with tqdm(
        desc="collecting", total=wanted.episodes, initial=len(held), unit="episode", leave=False, disable=None
    ) as bar:
        for result, trace in record(run, itertools.count(first), config, workers=workers):
            if result.steps < MIN_STEPS or (wanted.only_success and not result.success):
                failed += 1
                if failed >= PATIENCE:
                    raise ConfigError(
                        f"{failed} episodes in a row failed, up to seed {result.seed}: this policy hardly "
                        "ever succeeds; without --only-success its failures are kept too"
                    )
                continue
            failed = 0
            episode = Episode(np.array(trace.obs[:-1], np.float32), np.array(trace.actions, np.float32))
            collection.add(episode, Kept(result.seed, result.success, result.max_reward))
            bar.update()
            if len(collection.episodes) >= wanted.episodes:
                return


def _config(policy: Policy, run: Path, wanted: Wanted) -> RolloutConfig:
    env_id = get_task(policy.record.task).env_id
    if env_id is None:
        raise ConfigError(f"{run} was trained without a task, so there is no environment to play in")
    sampling = changed_sampling(policy.model.config.sampling, wanted.sampling)
    return RolloutConfig(env_id, wanted.reset_rule, wanted.chunk, sampling)


def _provenance(policy: Policy, run: Path, config: RolloutConfig, wanted: Wanted) -> Provenance:
    assert config.sampling is not None
    return Provenance(
        by="policy",
        settings={
            "policy": fingerprint(RunDirectory(run).weights()),
            "method": policy.record.config.method,
            "sampling": config.sampling.to_dict(),
            "chunk": config.chunk or policy.chunk,
            "env": config.env_id,
            "reset_rule": config.reset_rule,
            "seed_start": wanted.seed_start,
            "only_success": wanted.only_success,
        },
        notes={
            "run": SHIPPED if run == SHIPPED_POLICY else str(run),
            "train_seed": policy.record.seed,
            "trained_on": policy.record.demos.fingerprint,
        },
    )
