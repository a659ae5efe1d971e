"""Evaluate a policy: roll it out from consecutive seeds and score the episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from nsde_policy.assets import get_shipped_name
from nsde_policy.bounds import Count, Natural
from nsde_policy.config import BaseConfig, Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.eval.disturbances import CameraCondition, Condition
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.scores import EvaluationScores, score_episodes
from nsde_policy.files import decode_json
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.torch_threads import count_cores
from nsde_policy.run_directory import RunRecord
from nsde_policy.selection.rule import Choice
from nsde_policy.tasks import Task, get_task_of_run, with_env_kwargs

MAX_BATCH = 200
"""Most episodes rolled out side by side on a device other than the CPU."""


@dataclass(frozen=True)
class Evaluation:
    """Scores, and the settings they were made with."""

    scores: EvaluationScores
    config: RolloutConfig
    context: dict[str, object]
    """Run, seeds, environment, chunk, sampling and versions, for JSON."""


@dataclass(frozen=True)
class EvaluationConfig(BaseConfig):
    """Seeds, environment, sampling and disturbances of an evaluation."""

    episodes: Count = 50
    """Number of consecutive seeds."""
    seed_start: Natural = 100_000
    env: str | None = None
    """Task or environment, see `get_task`; None for the one that the policy was trained for."""
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment, which override those of the task and, if `env` is None, of the
    run."""
    chunk: Count | None = None
    """Actions executed before replanning; None for the policy's own."""
    sampling: tuple[str, ...] = ()
    """Changes to the sampling settings, such as "alpha=0.5" or "steps=10"."""
    condition: Condition = field(default_factory=Condition)
    """Disturbances of the episodes."""
    camera: CameraCondition = field(default_factory=CameraCondition)
    """Disturbances of the cameras."""
    select: Choice = "auto"
    """Rule of plan selection; auto for the one that training chose."""

    @property
    def seeds(self) -> range:
        """Seeds of the episodes."""
        return range(self.seed_start, self.seed_start + self.episodes)

    def find_task(self, record: RunRecord) -> Task:
        """Return the task that a run is rolled out in, with all keyword arguments of its environment."""
        return with_env_kwargs(get_task_of_run(record, self.env), self.env_kwargs)


def evaluate_policy(
    path: Path | None,
    config: EvaluationConfig,
    *,
    workers: int = 0,
    device: str = "cpu",
    traced: bool = False,
) -> Evaluation:
    """Roll out the policy of a run directory, or the shipped one, from consecutive seeds and score it.

    There is one process per core if `workers` is 0; a GPU runs all episodes in one. Traces of the episodes
    are returned if `traced`.
    """
    policy = Policy.from_pretrained(path).use_selection(config.select)
    task = get_task_of_run(policy.record, config.env)
    sampling = change_sampling(policy.sampling, config.sampling)
    rollout = RolloutConfig(
        task, config.env_kwargs, config.chunk, sampling, config.condition, config.camera, select=config.select
    )
    policy.check_steps(config.chunk or policy.chunk)
    if device == "cpu":
        pool = RolloutPool(path, rollout, workers=min(workers or count_cores(), config.episodes))
    else:
        pool = RolloutPool(path, rollout, device=device, batch=min(config.episodes, MAX_BATCH))
    found = pool.evaluate(config.seeds, traced=traced)
    results = list(tqdm(found, "episodes", config.episodes, unit="episode", leave=False, disable=None))
    context = _describe_evaluation(path, policy, task, rollout, config.seeds)
    return Evaluation(score_episodes(results, task, policy.rule.kind), rollout, context)


def _describe_evaluation(
    path: Path | None, policy: Policy, task: Task, config: RolloutConfig, seeds: range
) -> dict[str, object]:
    """Return run, seeds, environment, chunk, sampling and versions, for JSON."""
    return {
        "run": get_shipped_name(path) or str(path),
        "method": policy.record.config.method,
        "seeds": [seeds.start, seeds.stop - 1],
        "env": task.env_id or task.name,
        "env_kwargs": {**task.env_kwargs, **config.env_kwargs},
        "chunk": config.chunk or policy.chunk,
        "sampling": config.sampling.to_dict() if config.sampling else {},
        **({"select": policy.rule.kind} if policy.selector else {}),
        "condition": config.condition.to_dict(),
        **({"camera": config.camera.to_dict()} if policy.spec.cameras else {}),
        "train_seed": policy.record.seed,
        "demos": policy.record.demos.to_dict(),
        "trained_with": dict(policy.record.versions),
    }


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
