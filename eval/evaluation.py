"""Evaluation as a user sees it: episodes played, scores printed and written, pictures where asked for."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsde_policy.config import SamplingConfig
from nsde_policy.errors import ConfigError
from nsde_policy.eval.rollout import RolloutConfig, evaluate
from nsde_policy.eval.scores import Scores, score
from nsde_policy.policy import NSDEPolicy
from nsde_policy.tasks import get_task


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
    alpha: float | None = None,
    diffusion: float | None = None,
    workers: int = 0,
) -> Evaluation:
    """Play consecutive seeds with a run's policy, or with the shipped one."""
    if episodes < 1 or seed_start < 0:
        raise ConfigError(f"need episodes >= 1 and seed_start >= 0, got {episodes} and {seed_start}")
    policy = NSDEPolicy.from_pretrained(path)
    env_id = get_task(policy.record.task).env_id
    if env_id is None:
        raise ConfigError(f"{path} was trained without a task, so there is no environment to play in")
    sampling = _sampling(policy.model.config.sampling, alpha, diffusion)
    config = RolloutConfig(env_id, reset_rule, chunk, sampling)
    seeds = range(seed_start, seed_start + episodes)
    played = evaluate(path, seeds, config, workers=workers or os.cpu_count() or 1)
    results = list(tqdm(played, "playing", episodes, unit="episode", leave=False, disable=None))
    context = {
        "run": "shipped" if path is None else str(path),
        "seeds": [seeds.start, seeds.stop - 1],
        "env": env_id,
        "reset_rule": reset_rule,
        "chunk": chunk or policy.chunk,
        "sampling": sampling.to_dict(),
        "train_seed": policy.record.seed,
        "demos": policy.record.demos.to_dict(),
        "trained_with": dict(policy.record.versions),
    }
    return Evaluation(score(results), config, context)


def _sampling(own: SamplingConfig, alpha: float | None, diffusion: float | None) -> SamplingConfig:
    changes: dict[str, Any] = {}
    if alpha is not None:
        if own.denoiser == "off":
            raise ConfigError("this run has no denoiser, so --alpha means nothing; leave it out")
        changes["alpha"] = alpha
    if diffusion is not None:
        changes["diffusion"] = diffusion
    return dataclasses.replace(own, **changes)
