"""Scores of an evaluation: means over episodes with 95 % intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np

from nsde_policy.eval.compare.entries import Episodes
from nsde_policy.eval.compare.row import Summary
from nsde_policy.eval.episode import EpisodeResult
from nsde_policy.eval.statistics import Estimate
from nsde_policy.eval.tables import EMPTY_CELL
from nsde_policy.selection.rule import Kind
from nsde_policy.tasks import Task


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
