"""Table of success over the number of demonstrations: means over all tasks, and every task."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.statistics import Estimate
from result_tables.files import NONE, markdown, pool_success

NOTE = "Columns: numbers of demonstrations. Intervals are of the rollouts, not over other tasks or trainings."


def tabulate_demonstrations(comparisons: Mapping[str, Comparison]) -> str:
    """Tabulate success of each method by the number of demonstrations, the means over the tasks first."""
    groups = {f"**mean of {len(comparisons)}**": [*comparisons.values()]}
    for task, comparison in comparisons.items():
        groups[task.removeprefix("metaworld:").removesuffix("-v3")] = [comparison]
    counts = sorted({entry.demos for each in comparisons.values() for entry in each.entries})
    lines = [
        [title, label, *(curve.get(count, NONE) for count in counts)]
        for title, chosen in groups.items()
        for label, curve in estimate_curves(chosen).items()
    ]
    return f"{markdown(['task', 'method', *map(str, counts)], lines)}\n\n{NOTE}"


def estimate_curves(comparisons: Sequence[Comparison]) -> dict[str, dict[int, Estimate]]:
    """Estimate success over all rollouts of several tasks, by method and number of demonstrations.

    Numbers that are missing in one of the tasks are left out. Each task has as many rollouts as any other.
    """
    success: dict[tuple[str, int], dict[str, list[Any]]] = {}
    for each in comparisons:
        for entry in each.entries:
            by_task = success.setdefault((entry.label, entry.demos), {})
            by_task.setdefault(each.task, []).append(entry.episodes.success)
    curves: dict[str, dict[int, Estimate]] = {}
    for (label, demos), by_task in success.items():
        if len(by_task) == len(comparisons):
            curves.setdefault(label, {})[demos] = pool_success([*chain.from_iterable(by_task.values())])
    return curves
