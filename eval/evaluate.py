"""Evaluate a policy: play consecutive seeds and score them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nsde_policy.assets import get_shipped_name
from nsde_policy.config import Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.eval.camera import CameraCondition
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.scores import EvaluationScores, score_episodes
from nsde_policy.eval.shared_planner import SharedPlannerPool
from nsde_policy.files import decode_json
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.torch_threads import count_cores
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import Task, get_task_of_run

MAX_BATCH = 200
"""Most episodes played side by side on a device other than the CPU."""
QUICK_SEEDS = range(200_000, 200_020)
"""Seeds of the quick evaluations during training; reported scores never use them."""


@dataclass(frozen=True)
class Evaluation:
    """Scores, and the settings they were made with."""

    scores: EvaluationScores
    config: RolloutConfig
    context: dict[str, Any]
    """Run, seeds, environment, chunk, sampling and versions, for JSON."""


def evaluate_policy(
    path: Path | None,
    *,
    episodes: int,
    seed_start: int,
    env: str | None = None,
    env_kwargs: Mapping[str, object] | None = None,
    chunk: int | None = None,
    sampling: Sequence[str] = (),
    condition: Condition | None = None,
    camera: CameraCondition | None = None,
    workers: int = 0,
    device: str = "cpu",
    traced: bool = False,
) -> Evaluation:
    """Play consecutive seeds with a policy and score them.

    Args:
        path: Run directory; None for the policy shipped in the package.
        episodes: Number of seeds.
        seed_start: First seed.
        env: Task or environment to play, see `get_task`; None for the one that the policy was trained for.
        env_kwargs: Keyword arguments of the environment.
        chunk: Actions executed before planning again; None for the policy's own.
        sampling: Changes to the sampling settings, such as "alpha=0.5" or "steps=10".
        condition: Disturbances of the episodes.
        camera: Disturbances of the cameras.
        workers: Processes, 0 for one per core; without cameras, a GPU plays all episodes in one process.
        device: Torch device of the policy.
        traced: Return the traces of the episodes as well.
    """
    if episodes < 1 or seed_start < 0:
        raise ConfigError(f"need episodes >= 1 and seed_start >= 0, got {episodes} and {seed_start}")
    policy = Policy.from_pretrained(path)
    task = get_task_of_run(policy.record, env)
    changed = change_sampling(policy.model.config.sampling, sampling)
    config = RolloutConfig(
        task, env_kwargs or {}, chunk, changed, condition or Condition(), camera or CameraCondition()
    )
    policy.check_chunk(chunk or policy.chunk)
    seeds = range(seed_start, seed_start + episodes)
    is_shared = device != "cpu" and path is not None and bool(policy.spec.cameras) and not traced
    pool = _make_pool(path, config, episodes, workers, device, is_shared=is_shared)
    played = pool.evaluate(seeds, traced=traced)
    results = list(tqdm(played, "playing", episodes, unit="episode", leave=False, disable=None))
    return Evaluation(
        score_episodes(results, task), config, _describe_evaluation(path, policy, task, config, seeds)
    )


def _describe_evaluation(
    path: Path | None, policy: Policy, task: Task, config: RolloutConfig, seeds: range
) -> dict[str, Any]:
    """Return run, seeds, environment, chunk, sampling and versions, for JSON."""
    return {
        "run": get_shipped_name(path) or str(path),
        "method": policy.record.config.method,
        "seeds": [seeds.start, seeds.stop - 1],
        "env": task.env_id or task.name,
        "env_kwargs": {**task.env_kwargs, **config.env_kwargs},
        "chunk": config.chunk or policy.chunk,
        "sampling": config.sampling.to_dict() if config.sampling else {},
        "condition": config.condition.to_dict(),
        **({"camera": config.camera.to_dict()} if policy.spec.cameras else {}),
        "train_seed": policy.record.seed,
        "demos": policy.record.demos.to_dict(),
        "trained_with": dict(policy.record.versions),
    }


def _make_pool(
    path: Path | None, config: RolloutConfig, episodes: int, workers: int, device: str, *, is_shared: bool
) -> RolloutPool | SharedPlannerPool:
    count = min(workers or count_cores(), episodes)
    if is_shared and path is not None:
        return SharedPlannerPool(path, config, workers=count, device=device)
    if device == "cpu":
        return RolloutPool(path, config, workers=count)
    return RolloutPool(path, config, device=device, batch=min(episodes, MAX_BATCH))


def evaluate_quickly(path: Path, task: Task | None = None) -> dict[str, float]:
    """Score a run on a few seeds that are never reported, for `train --eval-every`.

    Args:
        path: Run directory.
        task: Task to play; None for the one that the run was trained for.
    """
    task = task or get_task_of_run(RunDirectory(path).read_record())
    results = list(RolloutPool(path, RolloutConfig(task)).evaluate(QUICK_SEEDS))
    scores = score_episodes(results, task)
    success = {} if scores.success_rate is None else {"success": scores.success_rate.value}
    return {"reward": scores.mean_score.value, **success}


def change_sampling(own: Sampling, changes: Sequence[str]) -> Sampling:
    """Return sampling settings with some changed, each given as "name=value"."""
    values = own.to_dict()
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in values:
            available = ", ".join(f"{key}={now}" for key, now in values.items()) or "none"
            raise ConfigError(f"{change!r} is not a sampling setting of this policy; available: {available}")
        try:
            values[name] = decode_json(value)
        except ValueError:
            values[name] = value
    if values.get("denoiser") == "off" and any(change.startswith("alpha=") for change in changes):
        raise ConfigError("this run has no denoiser, so alpha has no effect: leave it out")
    return type(own).from_dict(values)
