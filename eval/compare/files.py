"""Files of comparisons: read comparison.json of any format, and merge the comparisons of several files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.compare.entries import Entry, Setting
from nsde_policy.eval.compare.result import FORMAT, Comparison
from nsde_policy.eval.disturbances import Condition
from nsde_policy.files import read_json
from nsde_policy.tasks import TASKS


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
    """Merge comparisons of the same task, environment's arguments and seeds.

    An entry that occurs in several is kept once, with the costs known to any of them.
    """
    first, *rest = comparisons
    for other in rest:
        a, b = (
            (repr(c.task), json.dumps(c.env_kwargs, sort_keys=True), "{} to {}".format(*c.seeds))
            for c in (first, other)
        )
        titles = ("tasks", "environment arguments", "ranges of seeds")
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
