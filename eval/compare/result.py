"""Comparison: the episodes of every method on the same starts, read from and written to comparison.json.

Outcomes are kept start by start, so that every table and plot can be made again, and differences are paired.
A row is one method under one setting; its trainings with several seeds are pooled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.compare.entries import Entry, Latency, Setting, format_json_lines
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.statistics import Estimate, McNemar, mcnemar, mean, paired_difference, proportion
from nsde_policy.files import read_json
from nsde_policy.tasks import get_task

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

    @cached_property
    def reward(self) -> Estimate:
        """Mean score over all episodes, with its bootstrap interval."""
        return mean([value for entry in self.entries for value in entry.episodes.max_reward])

    @cached_property
    def success(self) -> Estimate:
        """Fraction of successful episodes, with Wilson's interval."""
        successes = [value for entry in self.entries for value in entry.episodes.success]
        return proportion(sum(successes), len(successes))

    @property
    def success_by_seed(self) -> dict[int, float]:
        """Fraction of successful episodes, by training seed."""
        return {entry.train_seed: float(np.mean(entry.episodes.success)) for entry in self.entries}

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
        return paired_difference(*means)

    def mcnemar(self, other: "Row") -> McNemar | None:
        """Test this row's successes against the other's, over common training seeds; None without any.

        Pairs are a start and a training seed each. Trainings share their starts, so with several of them
        the p-value is somewhat too small; the paired interval is not affected.
        """
        self._check_same_starts(other)
        own, others = ({e.train_seed: e.episodes.success for e in row.entries} for row in (self, other))
        common = sorted(set(own) & set(others))
        if not common:
            return None
        return mcnemar(
            np.concatenate([own[seed] for seed in common]), np.concatenate([others[seed] for seed in common])
        )

    def _check_same_starts(self, other: "Row") -> None:
        first, second = (row.first.episodes.seed for row in (self, other))
        if first != second:
            raise ComparisonError(
                f"{self.first.name!r} and {other.first.name!r} were played on different starts, "
                f"{len(first)} from {first[0]} to {first[-1]} and {len(second)} from {second[0]} to "
                f"{second[-1]}: play both on the same"
            )


class Comparison(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, tag_field="format", tag=1
):
    """Entries of several methods on the same starts; `format` in the file is the version of its format."""

    task: str
    reset_rule: str
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

    @property
    def score_title(self) -> str:
        """Title of the mean score, such as "mean max reward"."""
        return f"mean {get_task(self.task).score_name.replace('_', ' ')}"

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
        """Return one row per name, at its base setting; the most successful first.

        With a sweep over demonstrations, methods trained only on fewer appear there alone.
        """
        bases = [self.base_setting(name) for name in self.names]
        if self.sweep("demos"):
            bases = [base for base in bases if base.demos == self._max_demos]
        rows = [self.rows[base] for base in bases if base in self.rows]
        return sorted(rows, key=lambda row: (-row.success.value, -row.reward.value))

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
    if values["format"] != 1:
        raise ComparisonError(f"{path} has format {values['format']!r}; this version reads format 1")
    try:
        comparison = msgspec.convert(values, Comparison)
        for entry in values["entries"]:
            Condition.from_dict(entry["condition"])  # raises for unknown disturbances, which msgspec ignores
    except (msgspec.ValidationError, ConfigError) as error:
        raise ComparisonError(f"{path} is not a valid comparison: {error}") from None
    return comparison


def merge_comparisons(comparisons: Sequence[Comparison]) -> Comparison:
    """Merge comparisons of the same task, reset rule and starts.

    An entry that occurs in several is kept once, with the costs known to any of them.
    """
    first, *rest = comparisons
    for other in rest:
        a, b = ((repr(c.task), repr(c.reset_rule), "{} to {}".format(*c.seeds)) for c in (first, other))
        for title, one, another in zip(("tasks", "reset rules", "ranges of starts"), a, b, strict=True):
            if one != another:
                raise ComparisonError(
                    f"comparisons of different {title} do not mix: {one} and {another}; "
                    "use the same --episodes, --seed-start and --reset-rule"
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
