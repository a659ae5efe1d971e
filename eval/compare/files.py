"""Files of comparisons: read comparison.json, and merge the comparisons of several files."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.compare.entries import Entry, Setting
from nsde_policy.eval.compare.result import FORMAT, Comparison
from nsde_policy.eval.disturbances import Condition
from nsde_policy.files import read_json


def read_comparison(path: Path) -> Comparison:
    """Read comparison.json; raise `ComparisonError` if it cannot be read."""
    values = read_json(path, error=ComparisonError)
    if "format" not in values:
        raise ComparisonError(f"{path} is not a comparison: it has no 'format'")
    if values["format"] != FORMAT:
        raise ComparisonError(f"{path} has format {values['format']!r}; this version reads format {FORMAT}")
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
