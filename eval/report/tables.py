"""HTML of tables: figures with their intervals drawn, and settings in which runs differ."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from nsde_policy.assets import get_shipped_name
from nsde_policy.run_directory import RunRecord

from ..statistics import NO_DIFFERENCE, Difference, Estimate
from ..tables import EMPTY_CELL, Cell, Table

MARKS = ("●", "■", "◆", "▲", "▼", "★", "✚", "◇", "○")
"""Marks of the rows, so that they can be told apart without colours, or if colours repeat."""
COLOURS = 8
"""Number of colours in the style sheet, s0 to s7."""


def format_table(table: Table, numbers: Mapping[str, int] | None = None) -> str:
    """Format a table with the marks of its rows, given by label, and the note below it.

    Rows without a mark, such as baselines, and tables without marks show intervals as text alone. Cells
    repeat their titles, which narrow screens show instead of the head.
    """
    marks = numbers or {}
    head = "".join(f"<th scope=col>{escape(title)}</th>" for title in table.head)
    scales = [_find_scale(column) for column in zip(*table.lines, strict=True)]
    body = []
    for first, *rest in table.lines:
        number = marks.get(str(first))
        mark = ""
        if number is not None:
            symbol = MARKS[number % len(MARKS)]
            mark = f'<span class="mark s{number % COLOURS}" aria-hidden="true">{symbol}</span>'
        note = "<small>reference</small>" if first == table.reference else ""
        cells = "".join(
            f'<td data-title="{escape(title)}">{_format_cell(cell, scale, number)}</td>'
            for title, cell, scale in zip(table.head[1:], rest, scales[1:], strict=True)
        )
        body.append(f"<tr><th scope=row>{mark}<b>{escape(str(first))}</b>{note}</th>{cells}</tr>")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{table.name}"><table class="{table.name}">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        + (f'<p class="note">{escape(table.note)}</p>' if table.note else "")
    )


def _find_scale(column: Sequence[Cell]) -> tuple[float, float]:
    """Return the range of a column: around 0 for differences, 0 to 1 for fractions, else of all values."""
    estimates = [cell for cell in column if isinstance(cell, Estimate)]
    ends = [end for each in estimates for end in (each.low, each.value, each.high) if np.isfinite(end)]
    if any(isinstance(each, Difference) for each in estimates):
        reach = max([0.1, *map(abs, ends)])
        return -reach, reach
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    margin = 0.05 * (high - low or 1.0)
    return low - margin, high + margin


def _format_cell(cell: Cell, scale: tuple[float, float], number: int | None) -> str:
    if isinstance(cell, str):
        if cell.endswith(" ahead") or cell == NO_DIFFERENCE:
            kind = "same" if cell == NO_DIFFERENCE else "ahead"
            return f'<span class="verdict {kind}">{escape(cell)}</span>'
        return escape(cell)
    value, _, interval = str(cell).partition(" ")
    text = f"<b>{value}</b> <span class=interval>{interval}</span>"
    return text if number is None else text + _draw_interval(cell, *scale, number)


def _draw_interval(score: Estimate, low: float, high: float, number: int) -> str:
    """Draw a dot with its interval, if it has one, on a line from low to high, as SVG."""
    is_difference = isinstance(score, Difference)
    ends = (score.low, score.high) if score.has_interval else (score.value, score.value)
    left, middle, right = (100 * (value - low) / (high - low) for value in (ends[0], score.value, ends[1]))
    zero = '<path class="zero" d="M50 0V12"/>' if is_difference else ""
    return (
        f'<svg class="whisker s{number % COLOURS}" viewBox="-3 0 106 12" preserveAspectRatio="none" '
        f'role="img" aria-label="{score}"><path class="track" d="M0 6H100"/>{zero}'
        f'<path class="span" d="M{left:.2f} 6H{right:.2f}"/><path class="dot" d="M{middle:.2f} 6h.01"/></svg>'
    )


def format_settings_table(runs: Mapping[str, tuple[Path, RunRecord]]) -> str:
    """Format the settings in which runs differ, by label; empty without any."""
    columns = [
        {
            "run": get_shipped_name(path) or str(path),
            **_flatten(record.config.to_dict()),
            "seed": record.seed,
            "demos.fingerprint": record.demos.fingerprint[:12],
        }
        for path, record in runs.values()
    ]
    lines = []
    for name in dict.fromkeys(name for settings in columns for name in settings):
        values = [
            json.dumps(settings[name]).strip('"') if name in settings else EMPTY_CELL for settings in columns
        ]
        if len({*values} - {EMPTY_CELL}) > 1:
            lines.append([name, *values])
    return format_table(Table("settings", ["setting", *runs], lines)) if lines else ""


def _flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return settings in one level: train.steps, model.network.width and so on."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
