"""What a comparison holds: every method's episodes on the same starts; to and from comparison.json.

Outcomes are kept start by start, so that every table and plot can be made again, and differences are taken
pair by pair. A row is one method under one setting; its trainings from several seeds are pooled.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.entries import (
    Entry,
    Latency,
    Setting,
    check_keys,
    column_of,
    located,
    need,
    typed,
)
from nsde_policy.eval.disturbances import Condition
from nsde_policy.eval.paired import McNemar, mcnemar, paired_difference
from nsde_policy.eval.statistics import Estimate, mean, proportion

FORMAT = 1
"""Version of comparison.json; another one is refused."""
ACTIONS = 8
"""Actions that network calls and latency are counted for, whatever the method plans at once."""
CONDITIONS = ("latency_steps", "obs_noise", "push")
AXES = ("chunk", "demos", *CONDITIONS)
"""What may be varied, one at a time."""


@dataclass(frozen=True)
class Row:
    """A method under one setting: its trainings, in the order of their seeds, pooled."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        starts = {entry.episodes.seed for entry in self.entries}
        need(len(starts) == 1, f"trainings of {self.name!r} were played on different starts: play the same")

    @property
    def name(self) -> str:
        """As in the entries."""
        return self.entries[0].name

    @property
    def label(self) -> str:
        """For people."""
        return self.entries[0].label

    @property
    def setting(self) -> Setting:
        """As in the entries."""
        return self.entries[0].setting

    @property
    def starts(self) -> tuple[int, ...]:
        """Seeds of the starts that each training was played on."""
        return self.entries[0].episodes.seed

    @cached_property
    def reward(self) -> Estimate:
        """Mean max reward over all episodes, with its bootstrap interval."""
        return mean([value for entry in self.entries for value in entry.episodes.max_reward])

    @cached_property
    def success(self) -> Estimate:
        """Share of all episodes that succeeded, with Wilson's interval."""
        won = [value for entry in self.entries for value in entry.episodes.success]
        return proportion(sum(won), len(won))

    @property
    def success_by_seed(self) -> dict[int, float]:
        """Share of episodes that succeeded, by training seed."""
        return {entry.train_seed: float(np.mean(entry.episodes.success)) for entry in self.entries}

    @property
    def network_calls(self) -> float:
        """Network calls for eight actions."""
        return self.entries[0].calls_per_chunk

    @property
    def parameters(self) -> int:
        """Numbers that were learned."""
        return self.entries[0].parameters

    @property
    def train_s(self) -> float | None:
        """Mean training time over the trainings it is known of, seconds."""
        known = [entry.train_s for entry in self.entries if entry.train_s is not None]
        return sum(known) / len(known) if known else None

    @property
    def latency(self) -> Latency | None:
        """Of the first training it was measured on: it does not depend on the weights."""
        return next((entry.latency_ms for entry in self.entries if entry.latency_ms is not None), None)

    def per_start(self, column: str) -> np.ndarray:
        """Mean of a column over the trainings, start by start, (starts,)."""
        mean_over_trainings: np.ndarray = np.mean(
            [getattr(entry.episodes, column) for entry in self.entries], axis=0
        )
        return mean_over_trainings

    def difference(self, other: "Row", column: str) -> Estimate:
        """Mean of this row less the other, with its paired interval over the starts."""
        self._check_same_starts(other)
        return paired_difference(self.per_start(column), other.per_start(column))

    def mcnemar(self, other: "Row") -> McNemar | None:
        """Of this row's successes against the other's, over the training seeds both have; None without any.

        Pairs are a start and a training seed each. Trainings share their starts, so that with several of
        them the test is somewhat bold; the paired interval is not.
        """
        self._check_same_starts(other)
        ours, theirs = ({e.train_seed: e.episodes.success for e in row.entries} for row in (self, other))
        common = sorted(set(ours) & set(theirs))
        if not common:
            return None
        return mcnemar(
            np.concatenate([ours[seed] for seed in common]), np.concatenate([theirs[seed] for seed in common])
        )

    def _check_same_starts(self, other: "Row") -> None:
        need(
            self.starts == other.starts,
            f"{self.name!r} and {other.name!r} were played on different starts, "
            f"{_span(self.starts)} and {_span(other.starts)}: play both on the same",
        )


@dataclass(frozen=True)
class Comparison:
    """Methods on the same starts. The first setting of a name without troubles is its home."""

    task: str
    reset_rule: str
    seeds: tuple[int, int]
    """First and last start."""
    machine: Mapping[str, str]
    """Where runs were trained and played, and with which torch."""
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        first, last = self.seeds
        need(0 <= first <= last, f"starts from {first} to {last} are none")
        need(bool(self.entries), "a comparison needs at least one entry")
        seen: dict[tuple[Setting, int], Entry] = {}
        named: dict[str, Entry] = {}
        for entry in self.entries:
            where = f"{entry.name!r}, training seed {entry.train_seed}"
            inside = first <= entry.episodes.seed[0] and entry.episodes.seed[-1] <= last
            need(inside, f"{where} holds starts outside {first} to {last}")
            key = (entry.setting, entry.train_seed)
            need(key not in seen, f"{where} is there twice under the same setting")
            seen[key] = entry
            alike = named.setdefault(entry.name, entry)
            for shared in ("title", "method", "preset", "sampling"):
                same = getattr(alike, shared) == getattr(entry, shared)
                need(
                    same, f"two entries named {entry.name!r} differ in their {shared}: give each its own name"
                )

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

    def home(self, name: str) -> Setting:
        """Where variations of a name start: no troubles, most demonstrations, listed first."""
        own = [setting for setting in self.rows if setting.name == name]
        easy = [setting for setting in own if setting.condition == Condition()] or own
        most = max(setting.demos for setting in easy)
        found = next(setting for setting in easy if setting.demos == most)
        return found._replace(condition=Condition())

    def main_rows(self) -> list[Row]:
        """One row per name, at its home; the most successful first.

        Where a sweep over demonstrations has a place for them, those trained on fewer stand there alone.
        """
        homes = [self.home(name) for name in self.names]
        if self.sweep("demos"):
            homes = [home for home in homes if home.demos == self._most_demos]
        rows = [self.rows[home] for home in homes if home in self.rows]
        return sorted(rows, key=lambda row: (-row.success.value, -row.reward.value))

    def sweep(self, axis: str) -> dict[str, dict[float, Row]]:
        """Rows that differ from home in one thing only, by name and value.

        Names with several values, and beside them those that were only trained on fewer demonstrations.
        """
        found: dict[str, dict[float, Row]] = {}
        for name in self.names:
            home = self.home(name)
            along = {
                _value(setting, axis): row
                for setting, row in self.rows.items()
                if setting.name == name and _with(setting, axis, home) == home
            }
            if len(along) > 1 or (axis == "demos" and home.demos < self._most_demos):
                found[name] = dict(sorted(along.items()))
        return found if any(len(along) > 1 for along in found.values()) else {}

    @property
    def _most_demos(self) -> int:
        return max(setting.demos for setting in self.rows)

    def other_rows(self) -> list[Row]:
        """Rows that no sweep and not the main table show."""
        shown = {row.setting for row in self.main_rows()}
        for axis in AXES:
            shown |= {row.setting for along in self.sweep(axis).values() for row in along.values()}
        return [row for setting, row in self.rows.items() if setting not in shown]

    def reference(self, name: str | None = None) -> Row:
        """The row that others are compared with: the one named, or the Neural SDE, or else the first."""
        rows = {row.name: row for row in self.main_rows()}
        need(bool(rows), "every entry has troubles: without an undisturbed one there is nothing to refer to")
        if name is not None:
            need(name in rows, f"no row {name!r} to refer to; there are: {', '.join(map(repr, rows))}")
            return rows[name]
        ours = [n for n in self.names if n in rows and rows[n].entries[0].method == "neural_sde"]
        candidates = ["neural_sde", *ours, *(n for n in self.names if n in rows)]
        return rows[next(candidate for candidate in candidates if candidate in rows)]

    def to_json(self) -> str:
        """One line per column, so that the file stays small and can be read."""
        head = {
            "format": FORMAT,
            "task": self.task,
            "reset_rule": self.reset_rule,
            "seeds": list(self.seeds),
            "machine": dict(self.machine),
        }
        lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
        entries = ",\n".join(entry.to_json() for entry in self.entries)
        return "\n".join(["{", *lines, ' "entries": [', entries, " ]", "}"]) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Comparison":
        """The inverse of `to_json`; raises `ComparisonError` for anything else."""
        try:
            values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ComparisonError(f"not valid JSON: {error}") from None
        if not isinstance(values, dict) or "format" not in values:
            raise ComparisonError("not a comparison: an object with a format was expected")
        if values.pop("format") != FORMAT:
            raise ComparisonError(f"another format than {FORMAT}, the one this version reads")
        check_keys("a comparison", values, cls)
        seeds = column_of(values, "seeds", int)
        need(len(seeds) == 2, f"seeds must be the first and the last, got {len(seeds)} numbers")
        machine = typed(values, "machine", dict)
        need(all(isinstance(value, str) for value in machine.values()), "machine must hold strings")
        return cls(
            task=typed(values, "task", str),
            reset_rule=typed(values, "reset_rule", str),
            seeds=(seeds[0], seeds[1]),
            machine=machine,
            entries=tuple(
                located(f"entry {i}", Entry.from_dict, value)
                for i, value in enumerate(typed(values, "entries", list))
            ),
        )


def read_comparison(path: Path) -> Comparison:
    """Read comparison.json, or say in one line why it cannot be."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ComparisonError(f"{path} cannot be read: {why}") from None
    return located(str(path), Comparison.from_json, text)


def merged(comparisons: Sequence[Comparison]) -> Comparison:
    """All entries in one: of the same task, reset rule and starts only, or it would compare the unlike.

    An entry that several hold alike is kept once.
    """
    need(bool(comparisons), "nothing to merge")
    first, *rest = comparisons
    for other in rest:
        for what, name in (("task", "tasks"), ("reset_rule", "reset rules"), ("seeds", "ranges of starts")):
            a, b = getattr(first, what), getattr(other, what)
            need(a == b, f"comparisons of different {name} do not mix: {_said(a)} and {_said(b)}")
    entries: dict[tuple[Setting, int], Entry] = {}
    machine: dict[str, list[str]] = {}
    for comparison in comparisons:
        for what, where in comparison.machine.items():
            known = machine.setdefault(what, [])
            known += [where] if where not in known else []
        for entry in comparison.entries:
            kept = entries.setdefault((entry.setting, entry.train_seed), entry)
            need(
                kept == entry,
                f"two different results of {entry.name!r}, training seed {entry.train_seed}, chunk "
                f"{entry.chunk}, {entry.demos} demonstrations: give them names of their own, or drop one",
            )
    return replace(
        first,
        entries=tuple(entries.values()),
        machine={what: " and ".join(where) for what, where in machine.items()},
    )


def _value(setting: Setting, axis: str) -> float:
    value: float = getattr(setting.condition if axis in CONDITIONS else setting, axis)
    return value


def _with(setting: Setting, axis: str, home: Setting) -> Setting:
    """A setting with one thing put back to where home has it."""
    if axis in CONDITIONS:
        own = {axis: getattr(home.condition, axis)}
        return setting._replace(condition=replace(setting.condition, **own))
    return setting._replace(**{axis: getattr(home, axis)})


def _span(starts: Sequence[int]) -> str:
    return f"{len(starts)} from {starts[0]} to {starts[-1]}"


def _said(value: Any) -> str:
    return f"{value[0]} to {value[1]}" if isinstance(value, tuple) else repr(value)
