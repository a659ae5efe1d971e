"""Scores of rollouts: means over episodes of consecutive seeds with 95 % intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nsde_policy.assets import get_shipped_name, resolve_run
from nsde_policy.interface.roughness import describe_roughness
from nsde_policy.policy.policy import Policy
from nsde_policy.tasks import Task
from nsde_policy.torch_threads import count_cores

from ..episodes import ROUGHNESS, Episodes
from ..statistics import Estimate
from ..summary import Summary
from ..tables import EMPTY_CELL
from .episode import EpisodeResult, tabulate_results
from .pool import RolloutPool
from .runner import RolloutConfig, change_sampling

MAX_BATCH = 200
"""Most episodes rolled out side by side on a device other than the CPU."""


@dataclass(frozen=True, repr=False)
class RolloutScores(Summary):
    """Figures over all episodes of the rollouts of one policy."""

    episodes: Sequence[EpisodeResult]
    task: Task
    context: Mapping[str, object] = field(default_factory=dict)
    """Run, seeds, environment, chunk, sampling and versions, for JSON."""

    def __repr__(self) -> str:
        return self.as_text()

    @cached_property
    def columns(self) -> Episodes:
        """Outcomes of all episodes in columns."""
        return tabulate_results(self.episodes, self.task)

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
    def outside_share(self) -> float:
        """Fraction of steps with an observation far outside the demonstrated range."""
        return sum(r.outside for r in self.episodes) / sum(r.steps for r in self.episodes)

    def to_json(self) -> str:
        """Return the scores and the context they were made in as one JSON object."""
        values = {
            **self._list_figures(),
            "mean_steps_to_success": self.mean_steps_to_success,
            "ms_per_action": self.ms_per_action,
            "network_calls_per_chunk": self.network_calls_per_chunk,
            "episodes": [episode.to_dict(self.task.score_name) for episode in self.episodes],
        }
        if self.columns.modes:
            values["modes"] = self.columns.modes
            values["successes_by_mode"] = self.columns.successes_by_mode.tolist()
        plain = {
            key: asdict(value) if isinstance(value, Estimate) else value for key, value in values.items()
        }
        return json.dumps({**self.context, **plain}, indent=2, allow_nan=False)

    def as_text(self) -> str:
        """Return a table for a terminal, one line per figure."""
        rows: dict[str, object] = {"episodes": len(self.episodes)}
        rows |= self._list_figures()
        if ROUGHNESS in self.metrics:
            rows[ROUGHNESS] = describe_roughness(self.metrics[ROUGHNESS].value)
        if self.outside_share:
            rows["out of distribution"] = f"{100 * self.outside_share:.2g} % of the observations"
        if self.columns.modes:
            rows["distinct modes"] = f"{self.columns.distinct_modes} of {self.columns.modes}"
        if self.success is not None:
            steps = self.mean_steps_to_success
            rows["steps to success"] = EMPTY_CELL if steps is None else f"{steps:.0f}"
        rows["network calls"] = f"{round(self.network_calls_per_chunk, 1):g} per chunk"
        rows["planning"] = f"{self.ms_per_action:.2f} ms per action"
        width = max(map(len, rows))
        return "\n".join(f"{name.replace('_', ' '):<{width}} {value}" for name, value in rows.items())

    def _list_figures(self) -> Mapping[str, object]:
        """Return the means that can be computed, by name; of modes only if the task has some."""
        figures = {f"mean_{self.task.score_name}": self.score, "success_rate": self.success, **self.metrics}
        figures |= {"length": self.steps, "entropy": self.entropy, "success_times_entropy": self.product}
        return {name: estimate for name, estimate in figures.items() if estimate is not None}


def rollout(
    policy: Policy | Path | str | None = None,
    env: Task | str | None = None,
    *,
    episodes: int = 50,
    seed_start: int = 100_000,
    workers: int = 0,
    device: str = "cpu",
    **settings: object,
) -> RolloutScores:
    """Roll out a policy from consecutive seeds and score it, as `nsde-policy eval` does.

        scores = nsde_policy.rollout("runs/arm", episodes=100)
        print(scores)                          # means with 95 % intervals
        scores.success.value, scores.episodes[0].score

    Args:
        policy: Run directory, which one process per core loads, or "shipped". A loaded `Policy` is rolled out
            in this process, where it is.
        env: Task, its name, or a Gymnasium environment; None for the one that the policy was trained for.
        episodes: Number of seeds.
        seed_start: First seed. The result of a seed depends on that seed alone.
        workers: Number of processes; 0 for one per core.
        device: Torch device of a run directory; a GPU runs all episodes in one process.
        settings: Further fields of `RolloutConfig`, such as `chunk=4`.
    """
    config = RolloutConfig(env, episodes=episodes, seed_start=seed_start, **settings)  # type: ignore[arg-type]
    if isinstance(policy, str | Path):
        policy = resolve_run(Path(policy))
    return score_rollouts(policy, config, workers=workers, device=device)


def score_rollouts(
    policy: Policy | Path | None,
    config: RolloutConfig,
    *,
    workers: int = 0,
    device: str = "cpu",
    traced: bool = False,
    ray: str | None = None,
) -> RolloutScores:
    """Roll out a policy with the given settings and score it, see `rollout`.

    Traces of the episodes are returned if `traced`. With `ray`, a Ray cluster rolls out, see `open_pool`.
    """
    if isinstance(policy, Policy):
        loaded, workers, device = policy, 1, policy.device
    else:
        loaded = Policy.from_pretrained(policy).use_selection(config.select)
    task = config.find_task(loaded.record)
    config = replace(config, env=task, env_kwargs={})
    sampling = change_sampling(loaded.sampling, config.sampling)
    chunk = loaded.check_steps(config.chunk or loaded.chunk)
    if device == "cpu":
        pool = RolloutPool(policy, config, workers=min(workers or count_cores(), config.episodes), ray=ray)
    else:
        pool = RolloutPool(policy, config, device=device, batch=min(config.episodes, MAX_BATCH), ray=ray)
    results = pool.run(config.seeds, traced=traced)
    episodes = list(tqdm(results, "episodes", config.episodes, unit="episode", leave=False, disable=None))
    record = loaded.record
    context = {
        "run": "loaded policy" if isinstance(policy, Policy) else get_shipped_name(policy) or str(policy),
        "method": record.config.method,
        "seeds": [config.seeds[0], config.seeds[-1]],
        "env": task.env_id or task.name,
        "env_kwargs": dict(task.env_kwargs),
        "chunk": chunk,
        "sampling": sampling.to_dict(),
        **({"select": loaded.rule.kind} if loaded.selector else {}),
        "condition": config.condition.to_dict(),
        **({"camera": config.camera.to_dict()} if loaded.spec.cameras else {}),
        "train_seed": record.seed,
        "demos": record.demos.to_dict(),
        "trained_with": dict(record.versions),
    }
    return RolloutScores(episodes, task, context)
