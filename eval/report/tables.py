"""HTML tables of a report: scores and costs, paired differences, settings that differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from nsde_policy.eval.compare import table
from nsde_policy.eval.compare.result import ACTIONS, PRODUCT_TITLE, Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.statistics import MIN_PAIRS, NO_DIFFERENCE, Estimate
from nsde_policy.run_directory import RunRecord

MARKS = ("●", "■", "◆", "▲", "▼", "★", "✚", "◇", "○")
"""Marks of the rows, so that they can be told apart without colours, or if colours repeat."""
COLOURS = 8
"""Number of colours in the style sheet, s0 to s7."""


def format_mark(number: int) -> str:
    """Return the coloured mark of a row."""
    symbol = MARKS[number % len(MARKS)]
    return f'<span class="mark s{number % COLOURS}" aria-hidden="true">{symbol}</span>'


def format_score_table(comparison: Comparison, reference: Row) -> str:
    """Format scores with intervals, and costs; the best row first."""
    rows, deciding = comparison.main_rows(), comparison.columns[-1]
    shown = ("success", "score") if deciding == "success" else ("score", "steps")
    head = ["policy", *map(comparison.column_title, shown), "episodes", f"calls / {ACTIONS} actions"]
    head += ["parameters", "training", "latency, ms"]
    ranges = {column: _find_range([getattr(row, column) for row in rows]) for column in shown}
    lines = []
    for number, row in enumerate(rows):
        note = "reference" if row is reference else rank_row(row, reference, deciding)
        by_seed = ", ".join(map(table.format_mean, row.means_by_seed(deciding).values()))
        scores = [_format_score(getattr(row, column), *ranges[column], number) for column in shown]
        if len(row.entries) > 1:
            scores[0] += f"<small>by training seed: {by_seed}</small>"
        lines.append(
            [
                f"{format_mark(number)}<b>{escape(row.label)}</b><small>{escape(note)}</small>",
                *scores,
                str(row.episodes),
                *table.format_costs(row),
            ]
        )
    return format_html_table("scores", head, lines)


def _find_range(scores: Sequence[Estimate]) -> tuple[float, float]:
    """Return the range of an axis: from 0 to 1 if all intervals are within it, else around all of them."""
    low, high = min(score.low for score in scores), max(score.high for score in scores)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    margin = 0.05 * (high - low or 1.0)
    return low - margin, high + margin


def format_difference_table(comparison: Comparison, reference: Row) -> str:
    """Format the paired differences of every row to the reference; "" for a single row."""
    others = [(number, row) for number, row in enumerate(comparison.main_rows()) if row is not reference]
    if not others:
        return ""
    columns = comparison.columns[::-1]
    deciding = columns[0]
    head = [f"less {reference.label}", *map(comparison.column_title, columns)]
    head += ["won : lost", "McNemar p", "success: verdict"] if deciding == "success" else ["verdict"]
    differences = {column: [row.difference(reference, column) for _, row in others] for column in columns}
    ends = {c: [abs(end) for each in differences[c] for end in (each.low, each.high)] for c in columns}
    shared = [end for column in columns for end in ends[column]]
    if max(shared) <= 1:  # one scale for success and score
        ends = {column: [*shared] for column in columns}
    lines = []
    for i, (number, row) in enumerate(others):
        rank = rank_row(row, reference, deciding)
        kind = "same" if rank == NO_DIFFERENCE else "ahead"
        lines.append(
            [
                f"{format_mark(number)}<b>{escape(row.label)}</b>",
                *(_format_signed(differences[c][i], max(0.1, *ends[c]), number) for c in columns),
                *(_format_test(row, reference) if deciding == "success" else []),
                f'<span class="verdict {kind}">{escape(rank)}</span>',
            ]
        )
    return format_html_table("differences", head, lines)


def format_mode_table(comparison: Comparison, reference: Row) -> str:
    """Format distinct modes, entropy, success × entropy and distinct paths; "" if the task has no modes."""
    rows = comparison.mode_rows()
    if not rows:
        return ""
    numbers = {id(row): number for number, row in enumerate(comparison.main_rows())}
    head = ["policy", "entropy", PRODUCT_TITLE, "distinct modes", "distinct paths in episodes"]
    head += [f"{PRODUCT_TITLE} less {reference.label}", "verdict"]
    lines = []
    for row in rows:
        number = numbers[id(row)]
        assert row.product is not None
        entropy = _format_score(row.entropy, 0.0, 1.0, number) if row.entropy else table.EMPTY_CELL
        difference, verdict = table.compare_products(row, reference)
        value, _, interval = difference.partition(" ")
        kind = "ahead" if verdict.endswith("ahead") else "same"
        lines.append(
            [
                f"{format_mark(number)}<b>{escape(row.label)}</b>",
                entropy,
                _format_score(row.product, 0.0, 1.0, number),
                escape(table.format_mode_counts(row)),
                escape(table.format_path_count(row)),
                f"<b>{value}</b> <span class=interval>{interval}</span>",
                f'<span class="verdict {kind}">{escape(verdict)}</span>',
            ]
        )
    return format_html_table("modes", head, lines)


def _format_test(row: Row, reference: Row) -> list[str]:
    """Format McNemar's test: pairs that only one side won, and the p-value."""
    test = row.mcnemar(reference)
    if test is None:
        return [table.EMPTY_CELL, table.EMPTY_CELL]
    return [f"{test.only_a} : {test.only_b}", table.format_p_value(test.p)]


def format_settings_table(records: Sequence[tuple[str, RunRecord]]) -> str:
    """Format the settings in which runs differ, given as labels and records."""
    columns = [
        _flatten({**record.config.to_dict(), "seed": record.seed})
        | {"demos.fingerprint": record.demos.fingerprint[:12]}
        for _, record in records
    ]
    names = list(dict.fromkeys(name for settings in columns for name in settings))
    lines = []
    for name in names:
        values = [
            json.dumps(settings[name]) if name in settings else table.EMPTY_CELL for settings in columns
        ]
        if len({*values} - {table.EMPTY_CELL}) > 1:
            lines.append([f"<code>{escape(name)}</code>", *(escape(value.strip('"')) for value in values)])
    if not lines:
        return ""
    return format_html_table("settings", ["setting", *(label for label, _ in records)], lines)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings in one level: train.steps, model.network.width and so on."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def rank_row(row: Row, reference: Row, column: str) -> str:
    """Say whether a row is ahead of the reference by a column, behind it, or shows no difference."""
    decision = row.decide(reference, column, a="row", b="reference")
    ahead, behind = f"ahead of {reference.label}", f"behind {reference.label}"
    return {"row ahead": ahead, "reference ahead": behind}.get(decision, NO_DIFFERENCE)


def _format_score(score: Estimate, low: float, high: float, number: int) -> str:
    value, interval = str(score).split(" ", 1)
    text = f"<b>{value}</b> <span class=interval>{interval}</span>"
    return f"{text}{_draw_interval(score, low, high, number)}"


def _format_signed(difference: Estimate, reach: float, number: int) -> str:
    value, interval = table.format_difference(difference).split(" ", 1)
    text = f"<b>{value}</b> <span class=interval>{interval}</span>"
    if difference.n < MIN_PAIRS:
        difference = replace(difference, low=difference.value, high=difference.value)
    return text + _draw_interval(difference, -reach, reach, number, zero=True)


def _draw_interval(score: Estimate, low: float, high: float, number: int, *, zero: bool = False) -> str:
    """Draw a dot with its interval on a line from low to high, as SVG."""
    at = [100 * (value - low) / (high - low) for value in (score.low, score.value, score.high)]
    middle = '<path class="zero" d="M50 0V12"/>' if zero else ""
    return (
        f'<svg class="whisker s{number % COLOURS}" viewBox="-3 0 106 12" preserveAspectRatio="none" '
        f'role="img" aria-label="{score}"><path class="track" d="M0 6H100"/>{middle}'
        f'<path class="span" d="M{at[0]:.2f} 6H{at[2]:.2f}"/>'
        f'<path class="dot" d="M{at[1]:.2f} 6h.01"/></svg>'
    )


def format_html_table(kind: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a table; cells repeat their titles, which narrow screens show instead of the head.

    Titles are text, cells are HTML.
    """
    top = "".join(f"<th scope=col>{escape(title)}</th>" for title in head)
    body = []
    for first, *rest in lines:
        cells = [
            f'<td data-title="{escape(title)}">{cell}</td>'
            for title, cell in zip(head[1:], rest, strict=True)
        ]
        body.append(f"<tr><th scope=row>{first}</th>{''.join(cells)}</tr>")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{kind}"><table class="{kind}">'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
