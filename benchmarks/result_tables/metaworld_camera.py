"""Table of Meta-World from a camera, with the published results of Diffusion Policy and DP3."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.statistics import mean_proportion, proportion
from result_tables.files import NONE, markdown

PUBLISHED = Path(__file__).parents[1] / "dp3_metaworld.toml"
"""Success in % of Diffusion Policy and DP3 on each task, by group."""
NOTE = (
    "Published: the mean of the five best evaluations of a training. Ours: final weights. Our frames show "
    "the site that marks the goal. Means have intervals over tasks and rollouts."
)


class Successes(NamedTuple):
    """Successful rollouts of a method on a task, of all trainings, and how many there are."""

    won: int
    n: int


def tabulate_tasks(comparisons: Mapping[str, Comparison]) -> str:
    """Tabulate success on every task, and means over the groups of DP3, over all tasks and the compared ones.

    A method without results on some of the tasks has no mean over them.
    """
    names = list(dict.fromkeys(entry.name for each in comparisons.values() for entry in each.entries))
    results = {
        task.removeprefix("metaworld:").removesuffix("-v3"): _count_successes(each, names)
        for task, each in comparisons.items()
    }
    groups = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))
    published = {task: pair for group in groups.values() for task, pair in group.items()}

    by_every_method = [task for task, counts in results.items() if len(counts) == len(names)]
    averages = {"all": published, **groups, "with every method": by_every_method}
    lines: list[list[object]] = []
    for title, tasks in averages.items():
        if chosen := [task for task in tasks if task in results]:
            columns = [[results[task].get(name) for task in chosen] for name in names]
            means = [
                NONE if None in column else mean_proportion(*zip(*column, strict=True)) for column in columns
            ]
            theirs = _format_published([published[task] for task in chosen])
            lines.append([f"**{title} ({len(chosen)})**", *means, *theirs])
    for task in filter(results.__contains__, published):
        counts = [results[task].get(name) for name in names]
        cells = [NONE if count is None else proportion(*count) for count in counts]
        lines.append([task, *cells, *_format_published([published[task]])])
    head = ["task", *names, "Diffusion Policy, published", "DP3, published"]
    return f"{markdown(head, lines)}\n\n{NOTE}"


def _count_successes(comparison: Comparison, names: Iterable[str]) -> dict[str, Successes]:
    """Return the successes of each method on a task, of all its trainings."""
    counts = {}
    for name in names:
        success = [
            won for each in comparison.entries if each.name == name for won in each.episodes.success or ()
        ]
        if success:
            counts[name] = Successes(sum(success), len(success))
    return counts


def _format_published(pairs: Sequence[Sequence[float]]) -> list[str]:
    return [f"{value:.3f}" for value in np.mean(pairs, axis=0) / 100]
