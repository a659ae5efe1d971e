"""HTML tables of a report: scores and costs, paired differences, settings that differ."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nsde_policy.eval.compare import table
from nsde_policy.eval.compare.result import ACTIONS, Row
from nsde_policy.eval.statistics import NO_DIFFERENCE, Estimate, verdict
from nsde_policy.run_directory import RunRecord

MARKS = ("●", "■", "◆", "▲", "▼", "★", "✚", "◇", "○")
"""Marks of the rows, so that they can be told apart without colours, or if colours repeat."""
COLOURS = 8
"""Number of colours in the style sheet, s0 to s7."""


def format_mark(number: int) -> str:
    """Return the coloured mark of a row."""
    symbol = MARKS[number % len(MARKS)]
    return f'<span class="mark s{number % COLOURS}" aria-hidden="true">{symbol}</span>'


def format_score_table(rows: Sequence[Row], reference: Row, score_title: str) -> str:
    """Format scores with intervals, and costs; the most successful row first."""
    head = ["policy", "strict success", score_title, "episodes", f"calls / {ACTIONS} actions"]
    head += ["parameters", "training", "latency, ms"]
    low, high = min(0.0, *(row.reward.low for row in rows)), max(1.0, *(row.reward.high for row in rows))
    lines = []
    for number, row in enumerate(rows):
        note = "reference" if row is reference else rank_row(row, reference)
        shares = ", ".join(f"{share:.3f}" for share in row.success_by_seed.values())
        by_seed = f"<small>by training seed: {shares}</small>" if len(row.entries) > 1 else ""
        lines.append(
            [
                f"{format_mark(number)}<b>{escape(row.label)}</b><small>{escape(note)}</small>",
                _format_score(row.success, 0.0, 1.0, number) + by_seed,
                _format_score(row.reward, low, high, number),
                str(row.success.n),
                *table.format_costs(row),
            ]
        )
    return _format_html_table("scores", head, lines)


def format_difference_table(rows: Sequence[Row], reference: Row, score_title: str) -> str:
    """Format the paired differences of every row to the reference; "" for a single row."""
    others = [(number, row) for number, row in enumerate(rows) if row is not reference]
    if not others:
        return ""
    head = [f"less {reference.label}", "strict success", score_title, "won : lost", "McNemar p"]
    head.append("success: verdict")
    columns = ("success", "max_reward")
    differences = [[row.difference(reference, column) for column in columns] for _, row in others]
    ends = [abs(end) for pair in differences for each in pair for end in (each.low, each.high)]
    reach = max(0.1, *ends)
    lines = []
    for (number, row), pair in zip(others, differences, strict=True):
        test = row.mcnemar(reference)
        rank = rank_row(row, reference)
        kind = "same" if rank == NO_DIFFERENCE else "ahead"
        lines.append(
            [
                f"{format_mark(number)}<b>{escape(row.label)}</b>",
                *(_format_signed(difference, reach, number) for difference in pair),
                table.EMPTY_CELL if test is None else f"{test.only_a} : {test.only_b}",
                table.EMPTY_CELL if test is None else table.format_p_value(test.p),
                f'<span class="verdict {kind}">{escape(rank)}</span>',
            ]
        )
    return _format_html_table("differences", head, lines)


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
    return _format_html_table("settings", ["setting", *(label for label, _ in records)], lines)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings in one level: train.steps, model.network.width and so on."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def rank_row(row: Row, reference: Row) -> str:
    """Say whether a row's successes are ahead of the reference, behind it, or show no difference."""
    test = row.mcnemar(reference)
    success = row.difference(reference, "success")
    decision = verdict(success, a="row", b="reference", p=None if test is None else test.p)
    ahead, behind = f"ahead of {reference.label}", f"behind {reference.label}"
    return {"row ahead": ahead, "reference ahead": behind}.get(decision, NO_DIFFERENCE)


def _format_score(score: Estimate, low: float, high: float, number: int) -> str:
    text = f"<b>{score.value:.3f}</b> <span class=interval>[{score.low:.3f}, {score.high:.3f}]</span>"
    return f"{text}{_draw_interval(score, low, high, number)}"


def _format_signed(difference: Estimate, reach: float, number: int) -> str:
    value, interval = table.format_difference(difference).split(" ", 1)
    text = f"<b>{value}</b> <span class=interval>{interval}</span>"
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


def _format_html_table(kind: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
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
