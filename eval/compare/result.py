"""Comparison: the episodes of every method on the same starts, read from and written to comparison.json.

Outcomes are kept start by start, so that every table and plot can be made again, and differences are paired.
A row is one method under one setting; its trainings with several seeds are pooled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.compare.entries import Entry, Latency, Setting, format_json_lines
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.modes import Diversity, ModeOutcomes, compare_diversity, estimate_diversity
from nsde_policy.eval.paths import number_paths
from nsde_policy.eval.statistics import (
    MIN_PAIRS,
    Estimate,
    McNemar,
    mcnemar,
    mean,
    paired_difference,
    proportion,
    verdict,
)
from nsde_policy.files import read_json
from nsde_policy.tasks import TASKS, Task, get_task

FORMAT = 2
"""Version of the file format that is written; version 1 is still read."""

PRODUCT_TITLE = "success × entropy"
ACTIONS = 8
"""Actions that network calls and latency are counted for, whatever number a method plans at once."""
CONDITIONS = ("latency_steps", "obs_noise", "push")
AXES = Setting._fields[1:]
"""Settings that may be varied, one at a time."""


@dataclass(frozen=True)
class Row:
    """Pooled trainings of a method under one setting, in the order of their seeds."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len({entry.episodes.seed for entry in self.entries}) > 1:
            raise ComparisonError(
                f"trainings of {self.first.name!r} were played on different starts: play them on the same"
            )

    @property
    def first(self) -> Entry:
        """First entry; name, label, setting, starts and costs are the same in all."""
        return self.entries[0]

    @property
    def label(self) -> str:
        """Label of the entries."""
        return self.first.label

    @property
    def episodes(self) -> int:
        """Number of episodes of all trainings."""
        return sum(len(entry.episodes) for entry in self.entries)

    @cached_property
    def path_numbers(self) -> tuple[int, ...]:
        """Number of the distinct path of every episode, training by training.

        Trainings may share a path if the paths are known, else they share none.
        """
        drawn = [entry.episodes.unpack_paths() for entry in self.entries]
        known = [paths for paths in drawn if paths is not None]
        if len(self.entries) > 1 and len(known) == len(drawn):
            return number_paths(np.concatenate(known))
        numbers: list[int] = []
        for entry in self.entries:
            first = max(numbers, default=-1) + 1
            numbers += [first + number for number in entry.episodes.path or range(len(entry.episodes))]
        return tuple(numbers)

    @property
    def distinct_paths(self) -> int:
        """Number of different paths of all trainings, the independent samples."""
        return len({*self.path_numbers})

    def _mean(self, column: str) -> Estimate:
        """Return the mean of a column over all episodes; those that repeat a path are one sample."""
        values = [value for entry in self.entries for value in getattr(entry.episodes, column)]
        return mean(values, groups=self.path_numbers)

    @cached_property
    def score(self) -> Estimate:
        """Mean score over all episodes, with its bootstrap interval."""
        return self._mean("score")

    @cached_property
    def steps(self) -> Estimate:
        """Mean length of all episodes in control periods, with its bootstrap interval."""
        return self._mean("steps")

    @property
    def outcomes(self) -> list[ModeOutcomes]:
        """Successes by mode of every training; empty if the task has no modes."""
        found = [entry.episodes.outcomes for entry in self.entries]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else []

    @cached_property
    def diversity(self) -> Diversity | None:
        """Entropy and success × entropy, means over trainings; None if the task has no modes."""
        return estimate_diversity(self.outcomes, n=self.distinct_paths) if self.outcomes else None

    @property
    def entropy(self) -> Estimate | None:
        """Entropy of the modes of successful episodes, the mean over trainings; None if none has a mode."""
        return self.diversity.entropy if self.diversity and self.diversity.entropy.n else None

    @property
    def product(self) -> Estimate | None:
        """Success × entropy, the mean over trainings."""
        return None if self.diversity is None else self.diversity.product

    @cached_property
    def success(self) -> Estimate | None:
        """Fraction of successful episodes, with Wilson's interval; None if successes are not reported."""
        columns = [entry.episodes.success for entry in self.entries if entry.episodes.success is not None]
        if len(columns) < len(self.entries):
            return None
        return proportion(sum(map(sum, columns)), sum(map(len, columns)), independent=self.distinct_paths)

    def means_by_seed(self, column: str) -> dict[int, float]:
        """Return the mean of a column of the episodes, by training seed."""
        return {entry.train_seed: float(np.mean(getattr(entry.episodes, column))) for entry in self.entries}

    @property
    def train_s(self) -> float | None:
        """Mean of the known training times, seconds."""
        known = [entry.train_s for entry in self.entries if entry.train_s is not None]
        return sum(known) / len(known) if known else None

    @property
    def latency(self) -> Latency | None:
        """Latency of the first training that was timed: it does not depend on the weights."""
        return next((entry.latency_ms for entry in self.entries if entry.latency_ms is not None), None)

    def difference(self, other: "Row", column: str) -> Estimate:
        """Return the mean of this row minus the other, with its paired interval over the starts."""
        self._check_same_starts(other)
        means = (
            np.mean([getattr(entry.episodes, column) for entry in row.entries], axis=0)
            for row in (self, other)
        )
        return replace(paired_difference(*means), n=self._count_samples(other))

    def compare_modes(self, other: "Row") -> Diversity | None:
        """Return the differences of entropy and success × entropy, with their paired intervals."""
        self._check_same_starts(other)
        if not (self.outcomes and other.outcomes):
            return None
        # a policy whose trainings repeat one path each has entropy 0, which needs no further samples
        samples = [row.distinct_paths for row in (self, other) if any(o.distinct > 1 for o in row.outcomes)]
        n = min([len(self.first.episodes), *samples]) if samples else 1
        return compare_diversity(self.outcomes, other.outcomes, n=n)

    def _count_samples(self, other: "Row") -> int:
        """Return the number of starts, or of distinct paths if one of two rows has fewer."""
        return min(len(self.first.episodes), self.distinct_paths, other.distinct_paths)

    def mcnemar(self, other: "Row") -> McNemar | None:
        """Test this row's successes against the other's, over common training seeds.

        Returns:
            None without common seeds, or if one row has too few distinct paths to show a difference.

        Pairs are a start and a training seed each. Trainings share their starts, so with several of them
        the p-value is somewhat too small; the paired interval is not affected.
        """
        self._check_same_starts(other)
        own, others = (
            {e.train_seed: e.episodes.success for e in row.entries if e.episodes.success is not None}
            for row in (self, other)
        )
        common = sorted(set(own) & set(others))
        if not common or self._count_samples(other) < min(MIN_PAIRS, len(self.first.episodes)):
            return None
        return mcnemar(
            np.concatenate([own[seed] for seed in common]), np.concatenate([others[seed] for seed in common])
        )

    def decide(self, other: "Row", column: str, *, a: str, b: str) -> str:
        """Return which of two rows, called `a` and `b`, is ahead by a column, or that no difference is shown.

        Successes also need McNemar's test; scores need the paired interval alone.
        """
        test = self.mcnemar(other) if column == "success" else None
        return verdict(self.difference(other, column), a=a, b=b, p=None if test is None else test.p)

    def _check_same_starts(self, other: "Row") -> None:
        first, second = (row.first.episodes.seed for row in (self, other))
        if first != second:
            raise ComparisonError(
                f"{self.first.name!r} and {other.first.name!r} were played on different starts, "
                f"{len(first)} from {first[0]} to {first[-1]} and {len(second)} from {second[0]} to "
                f"{second[-1]}: play both on the same"
            )


class Comparison(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, tag_field="format", tag=FORMAT
):
    """Entries of several methods on the same starts; `format` in the file is the version of its format."""

    task: str
    """Name of a task, or the environment that was played."""
    env_kwargs: Mapping[str, Any]
    """Keyword arguments of the environment, defaults of the task included."""
    seeds: tuple[int, int]
    """First and last start."""
    machine: Mapping[str, str]
    """Where runs were trained, played and timed, and the version of torch."""
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        first, last = self.seeds
        if not 0 <= first <= last:
            raise ComparisonError(f"invalid range of starts, {first} to {last}: first must not exceed last")
        if not self.entries:
            raise ComparisonError("a comparison needs at least one entry")
        known: set[tuple[Setting, int]] = set()
        named: dict[str, Entry] = {}
        for entry in self.entries:
            title = f"{entry.name!r}, training seed {entry.train_seed}"
            if entry.episodes.seed[0] < first or entry.episodes.seed[-1] > last:
                raise ComparisonError(f"{title} has starts outside {first} to {last}")
            if (entry.setting, entry.train_seed) in known:
                raise ComparisonError(f"{title} occurs twice with the same setting")
            known.add((entry.setting, entry.train_seed))
            namesake = named.setdefault(entry.name, entry)
            for shared in ("title", "method", "preset", "sampling"):
                if getattr(namesake, shared) != getattr(entry, shared):
                    raise ComparisonError(
                        f"two entries named {entry.name!r} differ in their {shared}: use different names"
                    )

    @cached_property
    def task_info(self) -> Task:
        """The task, which names scores and successes."""
        return get_task(self.task)

    @property
    def score_title(self) -> str:
        """Title of the mean score, such as "mean max reward"."""
        return f"mean {self.task_info.score_name.replace('_', ' ')}"

    @property
    def score_word(self) -> str:
        """Title of the score where space is short, such as "reward"."""
        return self.task_info.score_name.split("_")[-1]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of episodes that are compared, the deciding one last: success if all entries report it."""
        known = all(entry.episodes.success is not None for entry in self.entries)
        return ("score", "success") if known else ("score",)

    def column_title(self, column: str) -> str:
        """Return the title of a column's mean, such as "strict success"."""
        titles = {"success": self.task_info.success_name, "steps": "mean steps"}
        return {**titles, "entropy": "entropy", "product": PRODUCT_TITLE}.get(column, self.score_title)

    @property
    def starts_title(self) -> str:
        """Environment's arguments and seeds, such as "benchmark starts 100000 to 100199"."""
        match list(self.env_kwargs.items()):
            case [(_, str(only))]:
                kind = f"{only} "
            case several:
                kind = "".join(f"{name}={json.dumps(value)} " for name, value in several)
        return "{}starts {} to {}".format(kind, *self.seeds)

    @cached_property
    def rows(self) -> dict[Setting, Row]:
        """All rows, in the order of their first entries."""
        pooled: dict[Setting, list[Entry]] = {}
        for entry in self.entries:
            pooled.setdefault(entry.setting, []).append(entry)
        return {
            setting: Row(tuple(sorted(entries, key=lambda entry: entry.train_seed)))
            for setting, entries in pooled.items()
        }

    @property
    def names(self) -> list[str]:
        """Names of the rows, each once."""
        return list(dict.fromkeys(setting.name for setting in self.rows))

    def base_setting(self, name: str) -> Setting:
        """Return the setting that sweeps of a name start from: undisturbed, most demonstrations, first."""
        own = [setting for setting in self.rows if setting.name == name]
        undisturbed = [setting for setting in own if not any(setting[3:])] or own
        return Setting(*max(undisturbed, key=lambda setting: setting.demos)[:3])

    def main_rows(self) -> list[Row]:
        """Return one row per name, at its base setting; the most successful first, or that of most score.

        With a sweep over demonstrations, methods trained only on fewer appear there alone.
        """
        bases = [self.base_setting(name) for name in self.names]
        if self.sweep("demos"):
            bases = [base for base in bases if base.demos == self._max_demos]
        rows = [self.rows[base] for base in bases if base in self.rows]
        return sorted(rows, key=lambda row: (-row.success.value if row.success else 0.0, -row.score.value))

    def mode_rows(self) -> list[Row]:
        """Return the main rows that have modes, the largest success × entropy first."""
        rows = [(row, row.product) for row in self.main_rows()]
        known = [(row, product.value) for row, product in rows if product is not None]
        return [row for row, _ in sorted(known, key=lambda each: -each[1])]

    def sweep(self, axis: str) -> dict[str, dict[float, Row]]:
        """Return rows that differ from the base setting along one axis only, by name and value.

        Includes names with several values, and with them those trained only on fewer demonstrations.
        """
        swept: dict[str, dict[float, Row]] = {}
        for name in self.names:
            base = self.base_setting(name)
            rows = {
                getattr(setting, axis): row
                for setting, row in self.rows.items()
                if setting._replace(**{axis: getattr(base, axis)}) == base
            }
            if len(rows) > 1 or (axis == "demos" and base.demos < self._max_demos):
                swept[name] = dict(sorted(rows.items()))
        return swept if any(len(rows) > 1 for rows in swept.values()) else {}

    @property
    def _max_demos(self) -> int:
        return max(setting.demos for setting in self.rows)

    def other_rows(self) -> list[Row]:
        """Return rows that are neither main rows nor part of a sweep."""
        shown = {row.first.setting for row in self.main_rows()}
        for axis in AXES:
            shown |= {row.first.setting for rows in self.sweep(axis).values() for row in rows.values()}
        return [row for setting, row in self.rows.items() if setting not in shown]

    def reference(self, name: str | None = None) -> Row:
        """Return the row that others are compared with; by default the Neural SDE, or else the first."""
        rows = {row.first.name: row for row in self.main_rows()}
        if not rows:
            raise ComparisonError("all entries have disturbances: a reference needs an undisturbed one")
        if name is not None:
            if name not in rows:
                raise ComparisonError(f"no row {name!r} to refer to; available: {', '.join(map(repr, rows))}")
            return rows[name]
        names = [name for name in self.names if name in rows]
        return rows[min(names, key=lambda n: (n != "neural_sde", rows[n].first.method != "neural_sde"))]

    def to_json(self) -> str:
        """Format as JSON with one line per column, which keeps the file small and readable."""
        head = msgspec.to_builtins(self)
        del head["entries"]
        entries = ",\n".join(entry.to_json() for entry in self.entries)
        return f'{{\n{format_json_lines(head, " ")},\n "entries": [\n{entries}\n ]\n}}\n'


def read_comparison(path: Path) -> Comparison:
    """Read comparison.json; raise `ComparisonError` if it cannot be read."""
    values = read_json(path, error=ComparisonError)
    if "format" not in values:
        raise ComparisonError(f"{path} is not a comparison: it has no 'format'")
    if values["format"] not in (1, FORMAT):
        raise ComparisonError(f"{path} has format {values['format']!r}; this version reads formats 1 and 2")
    if values["format"] == 1:
        values = _convert_format_1(values)
    try:
        comparison = msgspec.convert(values, Comparison)
        for entry in values["entries"]:
            Condition.from_dict(entry["condition"])  # raises for unknown disturbances, which msgspec ignores
    except (msgspec.ValidationError, ConfigError) as error:
        raise ComparisonError(f"{path} is not a valid comparison: {error}") from None
    return comparison


def _convert_format_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file of format 1 in format 2; what is missing or wrong stays so."""
    new = {**values, "format": FORMAT}
    if "reset_rule" in new:  # recorded for every task, used by those with several rules only
        rule, task = (
            new.pop("reset_rule"),
            TASKS.get(new["task"]) if new.get("task") in TASKS.names() else None,
        )
        new["env_kwargs"] = {"reset_rule": rule} if task and "reset_rule" in task.env_kwargs else {}
    if not isinstance(new.get("entries"), list):
        return new
    new["entries"] = [dict(entry) if isinstance(entry, dict) else entry for entry in new["entries"]]
    for entry in new["entries"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("episodes"), dict):
            continue
        entry["episodes"] = episodes = dict(entry["episodes"])
        if "max_reward" in episodes:
            episodes["score"] = episodes.pop("max_reward")
        coverage = episodes.pop("final_coverage", None)
        episodes["metrics"] = {} if coverage is None else {"final_coverage": coverage}
    return new


def merge_comparisons(comparisons: Sequence[Comparison]) -> Comparison:
    """Merge comparisons of the same task, environment's arguments and starts.

    An entry that occurs in several is kept once, with the costs known to any of them.
    """
    first, *rest = comparisons
    for other in rest:
        a, b = (
            (repr(c.task), json.dumps(c.env_kwargs, sort_keys=True), "{} to {}".format(*c.seeds))
            for c in (first, other)
        )
        titles = ("tasks", "environment arguments", "ranges of starts")
        for title, one, another in zip(titles, a, b, strict=True):
            if one != another:
                raise ComparisonError(
                    f"comparisons of different {title} do not mix: {one} and {another}; "
                    "use the same --episodes, --seed-start, --env and --env-kwargs"
                )
    entries: dict[tuple[Setting, int], Entry] = {}
    machine: dict[str, list[str]] = {}
    for comparison in comparisons:
        for role, device in comparison.machine.items():
            machine.setdefault(role, []).append(device)
        for entry in comparison.entries:
            known = entries.setdefault((entry.setting, entry.train_seed), entry)
            if known.episodes != entry.episodes:
                raise ComparisonError(
                    f"two different results of {entry.name!r}, training seed {entry.train_seed}, chunk "
                    f"{entry.chunk}, {entry.demos} demonstrations: use different names, or leave one out"
                )
            entries[entry.setting, entry.train_seed] = msgspec.structs.replace(
                known, latency_ms=known.latency_ms or entry.latency_ms, train_s=known.train_s or entry.train_s
            )
    return msgspec.structs.replace(
        first,
        entries=tuple(entries.values()),
        machine={role: " and ".join(dict.fromkeys(devices)) for role, devices in machine.items()},
    )
