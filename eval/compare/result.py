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

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.files import read_json
from nsde_policy.tasks import Task, get_task

from ..rollouts.disturbances import Condition
from .entries import Entry, Setting
from .row import Row, choose_reference

FORMAT = 2

ACTIONS = 8
"""Actions that network calls and latency are counted for, whatever number a method plans at once."""


class Comparison(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, tag_field="format", tag=FORMAT
):
    """Entries of several methods on the same seeds; `format` in the file is the version of its format."""

    task: str
    """Name of a task, or the environment of the rollouts."""
    env_kwargs: Mapping[str, Any]
    """Keyword arguments of the environment, defaults of the task included."""
    seeds: tuple[int, int]
    machine: Mapping[str, str]
    """Where runs were trained, rolled out and timed, and the version of torch."""
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        first, last = self.seeds
        if not self.entries:
            raise ComparisonError("a comparison needs at least one entry")
        settings: set[tuple[Setting, int]] = set()
        named: dict[str, Entry] = {}
        for entry in self.entries:
            title = f"{entry.name!r}, training seed {entry.train_seed}"
            seeds = entry.episodes.seed
            if last - first != len(seeds) - 1 or seeds != tuple(range(first, last + 1)):
                raise ComparisonError(f"{title} has other seeds than {first} to {last}")
            if (entry.setting, entry.train_seed) in settings:
                raise ComparisonError(f"{title} occurs twice with the same setting")
            settings.add((entry.setting, entry.train_seed))
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
        """Environment's arguments and seeds, such as "benchmark seeds 100000 to 100199"."""
        match list(self.env_kwargs.items()):
            case [(_, str(only))]:
                kind = f"{only} "
            case several:
                kind = "".join(f"{name}={json.dumps(value)} " for name, value in several)
        return "{}seeds {} to {}".format(kind, *self.seeds)

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
        """Return the setting by which a name is compared: undisturbed, most demonstrations, first."""
        own = [setting for setting in self.rows if setting.name == name]
        undisturbed = [setting for setting in own if not any(setting[3:])] or own
        return Setting(*max(undisturbed, key=lambda setting: setting.demos)[:3])

    def main_rows(self) -> list[Row]:
        """Return one row per name, at its base setting; the most successful first, or that of most score."""
        bases = [self.base_setting(name) for name in self.names]
        rows = [self.rows[base] for base in bases if base in self.rows]
        return sorted(rows, key=lambda row: (-row.success.value if row.success else 0.0, -row.score.value))

    def other_rows(self) -> list[Row]:
        """Return the rows of other settings: sweeps, disturbances, fewer demonstrations."""
        main = {row.first.setting for row in self.main_rows()}
        return [row for setting, row in self.rows.items() if setting not in main]

    def reference(self, name: str | None = None) -> Row:
        """Return the row that others are compared with, see `choose_reference`."""
        rows = self.main_rows()
        if not rows:
            raise ComparisonError("all entries have disturbances: a reference needs an undisturbed one")
        return choose_reference(sorted(rows, key=lambda row: self.names.index(row.name)), name)

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
        comparison = msgspec.convert(values, Comparison)
        for entry in values["entries"]:
            Condition.from_dict(entry["condition"])  # raises for unknown disturbances, which msgspec ignores
    except (msgspec.ValidationError, ConfigError) as error:
        raise ComparisonError(f"{path} is not a valid comparison: {error}") from None
    return comparison


def merge_comparisons(comparisons: Sequence[Comparison]) -> Comparison:
    """Merge comparisons of the same task, environment's arguments and seeds.

    An entry that occurs in several is kept once, with the costs known to any of them.
    """
    first, *rest = comparisons
    for other in rest:
        for name in ("task", "env_kwargs", "seeds"):
            one, another = getattr(first, name), getattr(other, name)
            if one != another:
                raise ComparisonError(
                    f"comparisons of different {name} do not mix: {one} and {another}; "
                    "use the same --episodes, --seed-start, --env and --env-kwargs"
                )
    entries: dict[tuple[Setting, int], Entry] = {}
    machine: dict[str, list[str]] = {}
    for comparison in comparisons:
        for role, device in comparison.machine.items():
            machine.setdefault(role, []).append(device)
        for entry in comparison.entries:
            earlier = entries.setdefault((entry.setting, entry.train_seed), entry)
            if earlier.episodes != entry.episodes:
                raise ComparisonError(
                    f"two different results of {entry.name!r}, training seed {entry.train_seed}, chunk "
                    f"{entry.chunk}, {entry.demos} demonstrations: use different names, or leave one out"
                )
            entries[entry.setting, entry.train_seed] = msgspec.structs.replace(
                earlier,
                latency_ms=earlier.latency_ms or entry.latency_ms,
                train_s=earlier.train_s or entry.train_s,
            )
    return msgspec.structs.replace(
        first,
        entries=tuple(entries.values()),
        machine={role: " and ".join(dict.fromkeys(devices)) for role, devices in machine.items()},
    )
