"""The tables of a report as HTML: scores and costs, differences start by start, settings that differ."""

import json
from collections.abc import Sequence
from html import escape

from nsde_policy.eval.compare.result import ACTIONS, Row
from nsde_policy.eval.compare.table import (
    NOTHING,
    as_count,
    as_duration,
    as_latency,
    as_p_value,
    as_signed,
)
from nsde_policy.eval.paired import NO_DIFFERENCE, verdict
from nsde_policy.eval.report.collect import Seen, settings_of
from nsde_policy.eval.statistics import Estimate

MARKS = ("●", "■", "◆", "▲", "▼", "★", "✚", "◇", "○")
"""One for each row, beside its colour: told apart without colours, and by both where colours come again."""
COLOURS = 8
"""How many the style sheet has, s0 to s7."""


def mark(number: int) -> str:
    """The coloured mark of a row."""
    sign = MARKS[number % len(MARKS)]
    return f'<span class="mark s{number % COLOURS}" aria-hidden="true">{sign}</span>'


def score_table(rows: Sequence[Row], reference: Row) -> str:
    """Scores with intervals, and what they cost; the most successful first."""
    head = ["policy", "strict success", "mean max reward", "episodes", f"calls / {ACTIONS} actions"]
    head += ["parameters", "training", "latency, ms"]
    lines = []
    for number, row in enumerate(rows):
        note = "reference" if row is reference else standing(row, reference)
        name = f"{mark(number)}<b>{escape(row.label)}</b><small>{escape(note)}"
        cells = [
            f"{name}</small>",
            _scored(row.success, number) + _by_seed(row),
            _scored(row.reward, number),
            str(row.success.n),
            f"{row.calls:g}",
            as_count(row.parameters),
            as_duration(row.train_s),
            as_latency(row.latency),
        ]
        lines.append(cells)
    return _table("scores", head, lines)


def difference_table(rows: Sequence[Row], reference: Row) -> str:
    """Every row less the reference, pair by pair; nothing where there is nothing to compare with."""
    others = [(number, row) for number, row in enumerate(rows) if row is not reference]
    if not others:
        return ""
    head = [f"less {reference.label}", "strict success", "mean max reward", "won : lost", "McNemar p"]
    head.append("success: verdict")
    lines = []
    compared = [
        row.difference(reference, column) for _, row in others for column in ("success", "max_reward")
    ]
    reach = max(0.1, *(abs(end) for found in compared for end in (found.low, found.high)))
    for number, row in others:
        reward, success = row.difference(reference, "max_reward"), row.difference(reference, "success")
        test = row.mcnemar(reference)
        found = standing(row, reference)
        kind = "same" if found == NO_DIFFERENCE else "ahead"
        lines.append(
            [
                f"{mark(number)}<b>{escape(row.label)}</b>",
                _signed(success, reach, number),
                _signed(reward, reach, number),
                NOTHING if test is None else f"{test.only_a} : {test.only_b}",
                NOTHING if test is None else as_p_value(test.p),
                f'<span class="verdict {kind}">{escape(found)}</span>',
            ]
        )
    return _table("differences", head, lines)


def settings_table(runs: Sequence[tuple[str, Seen]]) -> str:
    """Settings in which runs that have them differ; `runs` are labels and runs with a directory."""
    columns = [settings_of(seen.record) for _, seen in runs if seen.record is not None]
    names = list(dict.fromkeys(name for settings in columns for name in settings))
    lines = []
    for name in names:
        values = [json.dumps(settings[name]) if name in settings else NOTHING for settings in columns]
        if len({*values} - {NOTHING}) > 1:
            lines.append([f"<code>{escape(name)}</code>", *(escape(value.strip('"')) for value in values)])
    if not lines:
        return ""
    return _table("settings", ["setting", *(label for label, _ in runs)], lines)


def standing(row: Row, reference: Row) -> str:
    """How a row's successes stand to the reference's: ahead of it, behind it, or no difference shown."""
    test = row.mcnemar(reference)
    success = row.difference(reference, "success")
    ahead, behind = f"ahead of {reference.label}", f"behind {reference.label}"
    found = verdict(success, a="row", b="reference", p=None if test is None else test.p)
    return {"row ahead": ahead, "reference ahead": behind}.get(found, NO_DIFFERENCE)


def _by_seed(row: Row) -> str:
    if len(row.entries) < 2:
        return ""
    shares = ", ".join(f"{share:.3f}" for share in row.success_by_seed.values())
    return f"<small>by training seed: {shares}</small>"


def _scored(score: Estimate, number: int) -> str:
    text = f"<b>{score.value:.3f}</b> <span class=interval>[{score.low:.3f}, {score.high:.3f}]</span>"
    return f"{text}{_whisker(score, 0.0, 1.0, number)}"


def _signed(difference: Estimate, reach: float, number: int) -> str:
    value, interval = as_signed(difference).split(" ", 1)
    text = f"<b>{value}</b> <span class=interval>{interval}</span>"
    return text + _whisker(difference, -reach, reach, number, zero=True)


def _whisker(score: Estimate, low: float, high: float, number: int, *, zero: bool = False) -> str:
    """A dot with its interval on a line from low to high."""
    at = [100 * (value - low) / (high - low) for value in (score.low, score.value, score.high)]
    middle = '<path class="zero" d="M50 0V12"/>' if zero else ""
    return (
        f'<svg class="whisker s{number % COLOURS}" viewBox="-3 0 106 12" preserveAspectRatio="none" '
        f'role="img" aria-label="{score}"><path class="track" d="M0 6H100"/>{middle}'
        f'<path class="span" d="M{at[0]:.2f} 6H{at[2]:.2f}"/>'
        f'<path class="dot" d="M{at[1]:.2f} 6h.01"/></svg>'
    )


def _table(kind: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table that becomes cards where it is too wide: every cell knows what stands above it.

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
