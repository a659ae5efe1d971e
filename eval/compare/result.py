"""Comparison: the episodes of every method on the same seeds.

Outcomes are kept seed by seed, so that every table and plot can be made again, and differences are paired.
A row is one method under one setting; its trainings with several seeds are pooled.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec

from nsde_policy.errors import ComparisonError
from nsde_policy.files import read_json
from nsde_policy.tasks import Task, get_task

from .entries import Entry, Setting
from .row import Row

FORMAT = 2

ACTIONS = 8
"""Actions that network calls are counted for, whatever number a method plans at once."""


class Comparison(msgspec.Struct, frozen=True, dict=True, tag_field="format", tag=FORMAT):
    """Entries of several methods on the same seeds; `format` in the file is the version of its format.

    Other fields in the file are ignored.
    """

    task: str
    """Name of a task, or the environment of the rollouts."""
    env_kwargs: Mapping[str, Any]
    """Keyword arguments of the environment, defaults of the task included."""
    seeds: tuple[int, int]
    machine: Mapping[str, str]
    """Where runs were trained and rolled out, and the version of torch."""
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        first, last = self.seeds
        if not self.entries:
            raise ComparisonError("a comparison needs at least one entry")
        settings: set[tuple[Setting, int]] = set()
        for entry in self.entries:
            title = f"{entry.name!r}, training seed {entry.train_seed}"
            if entry.episodes.seed != tuple(range(first, last + 1)):
                raise ComparisonError(f"{title} has other seeds than {first} to {last}")
            if (entry.setting, entry.train_seed) in settings:
                raise ComparisonError(f"{title} occurs twice with the same setting")
            settings.add((entry.setting, entry.train_seed))

    @cached_property
    def task_info(self) -> Task:
        """The task, which names scores and successes."""
        return get_task(self.task)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of episodes that are compared, the deciding one last: success if all entries report it."""
        report_success = all(entry.episodes.success is not None for entry in self.entries)
        return ("score", "success") if report_success else ("score",)

    @property
    def mode_columns(self) -> tuple[str, ...]:
        """Columns about modes of successful episodes; empty if the task has no modes."""
        has_modes = all(entry.episodes.modes for entry in self.entries)
        return ("entropy", "product") if has_modes else ()

    def column_title(self, column: str) -> str:
        """Return the title of a column's mean, such as "strict success" or "mean max reward"."""
        titles = {
            "score": f"mean {self.task_info.score_name.replace('_', ' ')}",
            "success": self.task_info.reporting.success_name,
            "steps": "mean steps",
            "entropy": "entropy",
            "product": "success × entropy",
        }
        return titles[column]

    @property
    def seeds_title(self) -> str:
        """Environment's arguments and seeds, such as "reset_rule=benchmark seeds 100000 to 100199"."""
        arguments = "".join(
            f"{name}={value if isinstance(value, str) else json.dumps(value)} "
            for name, value in self.env_kwargs.items()
        )
        return "{}seeds {} to {}".format(arguments, *self.seeds)

    @cached_property
    def rows(self) -> list[Row]:
        """All rows, the most successful first, or the highest score."""
        pooled: dict[Setting, list[Entry]] = {}
        for entry in self.entries:
            pooled.setdefault(entry.setting, []).append(entry)
        rows = [
            Row(tuple(sorted(entries, key=lambda entry: entry.train_seed))) for entries in pooled.values()
        ]
        return sorted(rows, key=lambda row: (-row.success.value if row.success else 0.0, -row.score.value))

    @property
    def reference(self) -> Row:
        """The row of the first entry, with which others are compared."""
        return next(row for row in self.rows if row.first.setting == self.entries[0].setting)

    def to_json(self) -> str:
        """Format as JSON with one line per entry, which keeps the file small."""
        head = msgspec.to_builtins(self)
        encode = partial(json.dumps, allow_nan=False, ensure_ascii=False)
        entries = ",\n".join(map(encode, head.pop("entries")))
        return f'{encode(head)[:-1]}, "entries": [\n{entries}\n]}}\n'


def read_comparison(path: Path) -> Comparison:
    """Read comparison.json; raise `ComparisonError` if it cannot be read."""
    values = read_json(path, error=ComparisonError)
    try:
        return msgspec.convert(values, Comparison)
    except msgspec.ValidationError as error:
        raise ComparisonError(f"{path} is not a valid comparison: {error}") from None


def merge_comparisons(comparisons: Sequence[Comparison]) -> Comparison:
    """Merge comparisons of the same task on the same seeds, and list all their machines."""
    entries = tuple(entry for comparison in comparisons for entry in comparison.entries)
    machine: dict[str, dict[str, None]] = {}
    for comparison in comparisons:
        for role, device in comparison.machine.items():
            machine.setdefault(role, {})[device] = None
    joined = {role: " and ".join(devices) for role, devices in machine.items()}
    return msgspec.structs.replace(comparisons[0], entries=entries, machine=joined)
