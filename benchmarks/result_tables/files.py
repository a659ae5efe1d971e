"""Files of results, and cells of tables."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsde_policy.eval.statistics import Estimate, mean, proportion

RESULTS = Path(__file__).parents[1] / "results"
NONE = "–"
_read: list[str] = []


@contextmanager
def recording() -> Iterator[list[str]]:
    """Yield the names of the files that are read inside."""
    _read.clear()
    yield _read


def read(name: str) -> Any:
    """Read a file of results."""
    _read.append(f"{name}.json")
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table, in which no line breaks inside an interval."""
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    return re.sub(r"(\[[^]|]*,) ([^]|]*\])", "\\1\N{NO-BREAK SPACE}\\2", text)


def tabulate(rows: Iterable[Any], columns: Mapping[str, str | Callable[[Any], object]]) -> str:
    """Format a Markdown table: the key or the function of a row that fills each column, by title."""
    lines = [[row[fill] if isinstance(fill, str) else fill(row) for fill in columns.values()] for row in rows]
    return markdown([*columns], lines)


def number(key: str, decimals: int = 0) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats a number of a row; it may be missing."""

    def fill(row: Mapping[str, Any]) -> str:
        return NONE if row.get(key) is None else f"{row[key]:,.{decimals}f}"

    return fill


def cell(estimate: Mapping[str, Any] | None, decimals: int = 3, scale: float = 1.0) -> str:
    """Format a stored estimate with its interval."""
    if estimate is None:
        return NONE
    value, low, high = (f"{scale * estimate[key]:.{decimals}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]".replace("-", "−")


def pool(column: Sequence[Sequence[float]]) -> Estimate:
    """Estimate the mean over the episodes of all trainings."""
    return mean([value for each in column for value in each])


def pool_success(column: Sequence[Sequence[bool]]) -> Estimate:
    """Estimate the fraction of successes in the episodes of all trainings."""
    won = [bool(value) for each in column for value in each]
    return proportion(sum(won), len(won))


def by_seed(column: Sequence[Sequence[float]]) -> str:
    """Format the mean of each training."""
    return ", ".join(f"{sum(each) / len(each):.3f}" for each in column)


def group(rows: Iterable[Mapping[str, Any]], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Group rows by a key, in the order of their first appearance."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
