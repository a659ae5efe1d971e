"""Evaluation as a user sees it: episodes played, scores printed and written, pictures where asked for."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsde_policy.config import Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.pool import evaluate, record
from nsde_policy.eval.rollout import EpisodeResult, RolloutConfig, Trace
from nsde_policy.eval.scores import Scores, score
from nsde_policy.inference.policy import Policy
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task, get_task_of_run

BATCH = 200
"""Most episodes played side by side on a device that is no CPU."""


QUICK_SEEDS = range(200_000, 200_020)
"""Starts of the quick evaluations during training; never those that are reported."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Scores, and what they were made with."""

    scores: Scores
    config: RolloutConfig
    """How the episodes were played."""
    context: dict[str, Any]
    """Run, seeds, reset rule, chunk, sampling, versions."""


def evaluate_policy(
    path: Path | None,
    *,
    episodes: int,
    seed_start: int,
    reset_rule: str,
    chunk: int | None = None,
    sampling: Sequence[str] = (),
    condition: Condition | None = None,
    workers: int = 0,
    device: str = "cpu",
    watch: Callable[[EpisodeResult, Trace], None] | None = None,
) -> Evaluation:
    """Play consecutive seeds with a run's policy, or with the shipped one.

    `sampling` are changes to how the trained policy is sampled, such as "alpha=0.5" or "steps=10". On another
    device than the CPU, episodes are played side by side. `watch` is told all that happened in each.
    """
    if episodes < 1 or seed_start < 0:
        raise ConfigError(f"need episodes >= 1 and seed_start >= 0, got {episodes} and {seed_start}")
    policy = Policy.from_pretrained(path)
    env_id = get_task(policy.record.task).env_id
    if env_id is None:
        raise ConfigError(f"{path} was trained without a task, so there is no environment to play in")
    changed = changed_sampling(policy.model.config.sampling, sampling)
    config = RolloutConfig(env_id, reset_rule, chunk, changed, condition or Condition())
    policy.check_chunk(chunk or policy.chunk)
    seeds = range(seed_start, seed_start + episodes)
    crew = _crew(workers, device, episodes)
    if watch is None:
        played = evaluate(path, seeds, config, **crew)
    else:
        played = _watched(record(path, seeds, config, **crew), watch)
    results = list(tqdm(played, "playing", episodes, unit="episode", leave=False, disable=None))
    context = {
        "run": "shipped" if path is None else str(path),
        "method": policy.record.config.method,
        "seeds": [seeds.start, seeds.stop - 1],
        "env": env_id,
        "reset_rule": reset_rule,
        "chunk": chunk or policy.chunk,
        "sampling": changed.to_dict(),
        "condition": config.condition.to_dict(),
        "train_seed": policy.record.seed,
        "demos": policy.record.demos.to_dict(),
        "trained_with": dict(policy.record.versions),
    }
    return Evaluation(score(results), config, context)


def evaluate_quickly(path: Path) -> dict[str, float]:
    """Score a run on a few starts that are never reported, for `train --eval-every`."""
    env_id = get_task_of_run(RunDirectory(path).record()).env_id
    assert env_id is not None
    scores = score(list(evaluate(path, QUICK_SEEDS, RolloutConfig(env_id))))
    return {"reward": scores.mean_max_reward.value, "success": scores.success_rate.value}


def _watched(
    played: Iterable[tuple[EpisodeResult, Trace]], watch: Callable[[EpisodeResult, Trace], None]
) -> Iterator[EpisodeResult]:
    for result, trace in played:
        watch(result, trace)
        yield result


def _crew(workers: int, device: str, episodes: int) -> dict[str, Any]:
    """Who plays: processes on a CPU; one process and a batch elsewhere."""
    if device == "cpu":
        return {"workers": min(workers or os.cpu_count() or 1, episodes)}
    return {"device": device, "batch": min(episodes, BATCH)}


def changed_sampling(own: Sampling, changes: Sequence[str]) -> Sampling:
    """Sampling settings with some changed: "name=value" each."""
    values = own.to_dict()
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in values:
            there = ", ".join(f"{key}={now}" for key, now in values.items()) or "none"
            raise ConfigError(f"{change!r} is no sampling setting of this policy; those it has: {there}")
        values[name] = _parsed(value)
    if "alpha" in {change.partition("=")[0] for change in changes} and values.get("denoiser") == "off":
        raise ConfigError("this run has no denoiser, so alpha means nothing; leave it out")
    return type(own).from_dict(values)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
