"""Evaluate a policy: roll it out from consecutive seeds; means over episodes with 95 % intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nsde_policy.assets import get_shipped_name
from nsde_policy.bounds import Count, Natural
from nsde_policy.config import BaseConfig, Sampling
from nsde_policy.errors import ConfigError
from nsde_policy.eval.compare.entries import Episodes
from nsde_policy.eval.compare.row import Summary
from nsde_policy.eval.disturbances import CameraCondition, Condition
from nsde_policy.eval.episode import EpisodeResult
from nsde_policy.eval.pool import RolloutPool
from nsde_policy.eval.rollout import RolloutConfig
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tables import EMPTY_CELL
from nsde_policy.files import decode_json
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.torch_threads import count_cores
from nsde_policy.run_directory import RunRecord
from nsde_policy.selection.rule import Choice, Kind
from nsde_policy.tasks import Task, get_task_of_run, with_env_kwargs

MAX_BATCH = 200
"""Most episodes rolled out side by side on a device other than the CPU."""


@dataclass(frozen=True)
class EvaluationScores(Summary):
    """Figures over all episodes of an evaluation."""

    episodes: list[EpisodeResult]
    columns: Episodes
    score_name: str
    """What the task calls its score, such as "max_reward"."""
    rule: Kind = "none"
    """How the policy selects plans."""

    @property
    def trainings(self) -> tuple[Episodes, ...]:
        """The episodes, of one training."""
        return (self.columns,)

    @cached_property
    def metrics(self) -> dict[str, Estimate]:
        """Means of the task's further figures."""
        return {name: self._mean([values]) for name, values in self.columns.metrics.items()}

    @property
    def mean_steps_to_success(self) -> float | None:
        """Mean number of steps before the first success, over successful episodes; None without any."""
        needed = [r.steps_to_success for r in self.episodes if r.steps_to_success is not None]
        return float(np.mean(needed)) if needed else None

    @property
    def ms_per_action(self) -> float:
        """Planning time per planned action on this machine, milliseconds, median over episodes."""
        return float(np.median([1e3 * r.planning_s / r.planned for r in self.episodes]))

    @property
    def network_calls_per_chunk(self) -> float:
        """Mean number of network calls for one plan."""
        return sum(r.network_calls for r in self.episodes) / sum(r.plans for r in self.episodes)

    @property
    def selected_share(self) -> float:
        """Share of plans that were selected among several."""
        return sum(r.selected for r in self.episodes) / sum(r.plans for r in self.episodes)

    @property
    def outside_share(self) -> float:
        """Share of steps with an observation far outside the demonstrated range."""
        return sum(r.outside for r in self.episodes) / sum(r.steps for r in self.episodes)

    def to_json(self, **context: object) -> str:
        """Return the scores and the context they were made in as one JSON object."""
        values = {
            **self._list_figures(),
            "mean_steps_to_success": self.mean_steps_to_success,
            "ms_per_action": self.ms_per_action,
            "network_calls_per_chunk": self.network_calls_per_chunk,
            **({"selected_share": self.selected_share} if self.rule != "none" else {}),
            "distinct_paths": self.distinct_paths,
            "episodes": [episode.to_dict(self.score_name) for episode in self.episodes],
        }
        for outcomes in self.outcomes:
            values |= {"modes": len(outcomes.counts), "successes_by_mode": outcomes.counts.tolist()}
        plain = {key: asdict(each) if isinstance(each, Estimate) else each for key, each in values.items()}
        return json.dumps({**context, **plain}, indent=2, allow_nan=False)

    def as_text(self) -> str:
        """Return a table for a terminal, one line per figure."""
        rows: dict[str, object] = {"episodes": len(self.episodes)}
        if (count := self.distinct_paths) < len(self.episodes):
            samples = "1 distinct path" if count == 1 else f"{count} distinct paths"
            rows["distinct paths"] = f"{count}: episodes repeat paths, so intervals have n = {samples}"
        rows |= self._list_figures()
        if self.outside_share:
            rows["out of distribution"] = f"{100 * self.outside_share:.2g} % of the observations"
        for each in self.outcomes:
            rows["distinct modes"] = f"{each.observed} of {len(each.counts)}"
        if self.success is not None:
            steps = self.mean_steps_to_success
            rows["steps to success"] = EMPTY_CELL if steps is None else f"{steps:.0f}"
        rows["network calls"] = f"{round(self.network_calls_per_chunk, 1):g} per chunk"
        if self.rule != "none":
            rows[f"plans selected by {self.rule}"] = f"{100 * self.selected_share:.0f} %"
        rows["planning"] = f"{self.ms_per_action:.2f} ms per action"
        width = max(map(len, rows))
        return "\n".join(f"{name.replace('_', ' '):<{width}} {value}" for name, value in rows.items())

    def _list_figures(self) -> Mapping[str, object]:
        """Return the means that are known, by name; those of modes only if the task has some."""
        figures = {f"mean_{self.score_name}": self.score, "success_rate": self.success, **self.metrics}
        figures |= {"length": self.steps, "entropy": self.entropy, "success_times_entropy": self.product}
        return {name: estimate for name, estimate in figures.items() if estimate is not None}


def score_episodes(results: Sequence[EpisodeResult], task: Task, rule: Kind = "none") -> EvaluationScores:
    """Summarise the outcomes of episodes of a task, played with a rule of plan selection."""
    columns = Episodes.from_results(results, task, decimals=None)
    return EvaluationScores(list(results), columns, task.score_name, rule)


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
    camera: CameraCondition = field(default_factory=CameraCondition)
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
    ray: str | None = None,
) -> Evaluation:
    """Roll out the policy of a run directory, or the shipped one, from consecutive seeds and score it.

    There is one process per core if `workers` is 0; a GPU runs all episodes in one. Traces of the episodes
    are returned if `traced`. With `ray`, a Ray cluster rolls out, see `open_pool`.
    """
    policy = Policy.from_pretrained(path).use_selection(config.select)
    task = get_task_of_run(policy.record, config.env)
    sampling = change_sampling(policy.sampling, config.sampling)
    rollout = RolloutConfig(
        task, config.env_kwargs, config.chunk, sampling, config.condition, config.camera, select=config.select
    )
    policy.check_steps(config.chunk or policy.chunk)
    if device == "cpu":
        pool = RolloutPool(path, rollout, workers=min(workers or count_cores(), config.episodes), ray=ray)
    else:
        pool = RolloutPool(path, rollout, device=device, batch=min(config.episodes, MAX_BATCH), ray=ray)
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
    settings, values = own.to_dict(), dict[str, object]()
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or name not in settings:
            available = ", ".join(f"{key}={now}" for key, now in settings.items()) or "none"
            raise ConfigError(f"{change!r} is not a sampling setting of this policy; available: {available}")
        try:
            values[name] = decode_json(value)
        except ValueError:
            values[name] = value
    return own.change(values)
