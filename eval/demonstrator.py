"""Collect demonstrations by rolling out a policy or a scripted expert."""

import itertools
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nsde_policy.assets import USUAL_OBSERVATIONS, get_shipped_name, is_expert, resolve_run
from nsde_policy.bounds import Natural
from nsde_policy.data import Episode
from nsde_policy.data.collection import Collection, EpisodeInfo
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.encoders.encoder import IMAGE_KEY
from nsde_policy.errors import ConfigError
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory, find_versions, fingerprint
from nsde_policy.tasks import Task, find_rate, get_task, with_env_kwargs, with_observations
from nsde_policy.tasks.adapter import EnvAdapter
from nsde_policy.torch_threads import count_cores

from .rollouts.expert import ExpertRunner
from .rollouts.pool import RolloutPool
from .rollouts.runner import RolloutConfig, change_sampling, make_adapter

MAX_FAILURES = 100
"""Episodes in a row that may fail if only successes are kept."""


@dataclass(frozen=True)
class CollectConfig(RolloutConfig):
    """Number, seeds and sampling of collected episodes, which are never disturbed."""

    seed_start: Natural = 300_000
    """First seed; consecutive ones are tried."""
    only_success: bool = False
    """Leave out episodes that fail."""
    obs: str = USUAL_OBSERVATIONS
    """Observations to record in addition to the usual ones, such as "pixels"."""


class Demonstrator(NamedTuple):
    """A policy or a scripted expert in its environment, and what the store records about it."""

    pool: RolloutPool
    task: Task
    env: EnvAdapter
    made_with: Mapping[str, object]
    """Settings that determine the episodes."""
    notes: Mapping[str, object]
    """What else the store records about its origin."""


def collect_demonstrations(
    policy: str, out: Path, config: CollectConfig, *, workers: int = 0
) -> Sequence[EpisodeInfo]:
    """Roll out until the store `out` holds the requested number of episodes, and return all it holds.

    An episode depends on its seed alone, and seeds are tried in order: an interrupted run that is started
    again ends with the same store. The policy is a run directory, `shipped`, or `module:Class` of a scripted
    expert. There is one process per core if `workers` is 0.
    """
    pool, task, env, made_with, notes = _load(policy, config)
    new = not out.exists()
    with Collection(
        out,
        resume=True,
        rate_hz=find_rate(task, env.env),
        angles=task.training.demos.angles,
        provenance={**notes, "versions": find_versions()},
        made_with=made_with,
        attributes=_describe_env(env, task, config.seed_start),
    ) as collection:
        env.close()
        missing = config.episodes - len(collection.episodes)
        if missing > 0:
            try:
                _collect(collection, replace(pool, workers=min(workers or count_cores(), missing)), config)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"interrupted; {out} holds {len(collection.episodes)} episodes, and the same command "
                    "continues"
                ) from None
            except Exception:
                if new and not collection.episodes:
                    shutil.rmtree(out)
                raise
        return collection.episodes


def _load(name: str, config: CollectConfig) -> Demonstrator:
    """Load a policy or an expert and make its environment, before the store is made."""
    expert = name if is_expert(name) else None
    run, notes, obs = None, dict[str, object](), config.obs
    if expert is not None:
        if config.chunk is not None or config.sampling:
            raise ConfigError(f"--chunk and --sampling are for trained policies, not for the expert {name}")
        if not isinstance(config.env, str):
            raise ConfigError(f"the expert {name} needs an environment: give one with --env")
        task = get_task(config.env)
        made_with: dict[str, object] = {"by": "expert", "policy": name}
    else:
        run = resolve_run(Path(name))
        policy = Policy.from_pretrained(run)
        task = replace(config, env_kwargs={}).find_task(policy.record)
        if policy.spec.cameras:  # the environment of its training gives its frames
            obs = USUAL_OBSERVATIONS
        made_with = {
            "by": "policy",
            "policy": fingerprint(RunDirectory(run).read_weights()),
            "method": policy.record.config.method,
            "sampling": change_sampling(policy.sampling, config.sampling).to_dict(),
            "chunk": policy.check_steps(config.chunk or policy.chunk),
        }
        notes = {
            "run": get_shipped_name(run) or str(run),
            "train_seed": policy.record.seed,
            "trained_on": policy.record.demos.fingerprint,
        }
    task = with_env_kwargs(_record_observations(task, obs), config.env_kwargs)
    rollout = RolloutConfig(task, chunk=config.chunk, sampling=config.sampling)
    env = make_adapter(task, policy.record) if expert is None else ExpertRunner(expert, rollout).env
    images = _find_recorded_images(env, task, config.obs)
    made_with |= {
        **({"images": list(images)} if images else {}),
        "env": task.env_id or task.name,
        "env_kwargs": dict(task.env_kwargs),
        "seed_start": config.seed_start,
        "only_success": config.only_success,
    }
    pool = RolloutPool(run, replace(rollout, images=images), expert=expert)
    return Demonstrator(pool, task, env, made_with, notes)


def _record_observations(task: Task, obs: str) -> Task:
    """Return the task whose environment also gives some observations, such as "pixels", to be recorded."""
    with_observations(task, obs)  # raises if there are none of this name
    if obs == USUAL_OBSERVATIONS:
        return task
    return with_env_kwargs(task, task.training.observations[obs].recorded_with)


def _find_recorded_images(env: EnvAdapter, task: Task, obs: str) -> dict[str, str]:
    """Return the colour pictures in an environment's observation by the name of the array to store them in.

    Cameras of a policy keep their names, and those of the task's observations `obs` have the names that
    `train --obs` expects. Others are named as in the environment.
    """
    if env.cameras:
        return {name.removeprefix(IMAGE_KEY): part for name, part in env.cameras.items()}
    parts = list(env.images)
    names = [re.sub(r"\W", "_", part.removeprefix(IMAGE_KEY)) for part in parts]
    if obs in task.training.observations:
        expected = task.training.observations[obs].demos.get("images", ())
        names = list(expected) if len(expected) == len(parts) else names
    return dict(zip(names, parts, strict=True))


def _describe_env(env: EnvAdapter, task: Task, seed: int) -> dict[str, object]:
    """Return root attributes of the store: limits of actions, and names and sizes of observations.

    The latter only if observations are stored as the environment gives them, at the start of `seed`.
    """
    attributes: dict[str, object] = {}
    if np.isfinite([env.low, env.high]).any():
        low, high = (
            [value if np.isfinite(value) else None for value in limits.tolist()]
            for limits in (env.low, env.high)
        )
        attributes["action_space"] = {"low": low, "high": high}
    stored = task.drawing.read_state(*env.reset(seed)) if env.cameras else np.zeros(env.obs_dim)
    names = {name: size for name, size in env.obs_sizes.items() if name is not None}
    if names and len(stored) == env.obs_dim:
        attributes["observations"] = names
    return attributes


def _collect(collection: Collection, pool: RolloutPool, config: CollectConfig) -> None:
    episodes = collection.episodes
    first = episodes[-1].seed + 1 if episodes else config.seed_start
    failed = 0
    with tqdm(
        desc="collecting",
        total=config.episodes,
        initial=len(episodes),
        unit="episode",
        leave=False,
        disable=None,
    ) as bar:
        for result in pool.run(itertools.count(first), traced=True):
            if result.steps < MIN_STEPS or (config.only_success and not result.success):
                failed += 1
                if failed >= MAX_FAILURES:
                    raise ConfigError(
                        f"{failed} episodes in a row failed, up to seed {result.seed}: this policy hardly "
                        "ever succeeds, or its environment does not report success (info['success'] or "
                        "info['is_success']); without --only-success all episodes are recorded"
                    )
                continue
            failed, trace = 0, result.trace
            episode = Episode(np.array(trace.obs[:-1], np.float32), np.array(trace.actions, np.float32))
            collection.add(episode, EpisodeInfo(result.seed, result.success, result.score), trace.images)
            bar.update()
            if len(collection.episodes) >= config.episodes:
                return
