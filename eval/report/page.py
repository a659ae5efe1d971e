"""The page itself: texts, tables, data and scripts in one file that asks nobody for anything."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from string import Template
from typing import Any

from nsde_policy import __version__
from nsde_policy.envs.pusht import geometry
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.eval.compare.result import Row
from nsde_policy.eval.paired import NO_DIFFERENCE
from nsde_policy.eval.report.collect import Report, Seen
from nsde_policy.eval.report.replays import SCALES
from nsde_policy.eval.report.tables import (
    COLOURS,
    MARKS,
    difference_table,
    mark,
    score_table,
    settings_table,
    standing,
)
from nsde_policy.run_directory import find_versions

SCRIPTS = ("page.js", "charts.js", "replays.js", "explorer.js")
"""Scripts of the page, loaded after the scene drawing that the live page shares, envs/pusht/scene.js."""
DIGITS = 5
"""Significant digits of numbers in curves."""


def page(report: Report, *, title: str | None = None, reference: str | None = None) -> str:
    """The whole report as HTML."""
    comparison = report.comparison
    rows = comparison.main_rows()
    home = comparison.reference(reference)
    shown = _shown(report, rows)
    style = _file("page.css")
    script = "\n".join([_file("scene.js", "nsde_policy.envs.pusht"), *map(_file, SCRIPTS)])
    first, last = comparison.seeds
    starts = len(home.starts)
    title = title or f"Push-T: {len(rows)} polic{'y' if len(rows) == 1 else 'ies'} on {starts} starts"
    return Template(_file("page.html")).substitute(
        policy=_policy(style, script),
        style=style,
        script=script,
        title=escape(title),
        facts=escape(f"{comparison.reset_rule} starts {first} to {last}, the same for all; final weights"),
        summary=_summary(rows, home),
        scores=score_table(rows, home),
        differences=difference_table(rows, home) or "<p>One policy: nothing to compare it with.</p>",
        videos=_videos(shown),
        logs=escape(_missing_logs(shown)),
        settings=_settings(shown),
        left_out=_left_out(len(report.runs) - len(shown)),
        machine=escape(_machine(report)),
        made=escape(f"nsde-policy {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        data=_json(_data(report, shown)),
        frames="".join(
            f'<script type="text/plain" id="frames-{i}">{seen.replays.packed()}</script>\n'
            for i, (_, _, seen) in enumerate(shown)
            if seen.replays is not None
        ),
    )


def _shown(report: Report, rows: Sequence[Row]) -> list[tuple[int, str, Seen]]:
    """The runs in the order of the table: number of the row, label, run."""
    by_entry = {id(seen.entry): seen for seen in report.runs}
    shown = []
    for number, row in enumerate(rows):
        for entry in row.entries:
            several = f", seed {entry.train_seed}" if len(row.entries) > 1 else ""
            shown.append((number, row.label + several, by_entry[id(entry)]))
    return shown


def _summary(rows: Sequence[Row], reference: Row) -> str:
    """What there is to see, in a sentence or two."""
    best = rows[0]
    text = (
        f"<b>{escape(best.label)}</b> succeeds in {_percent(best.success.value)} of its episodes "
        f"(95 % interval {_percent(best.success.low)} to {_percent(best.success.high)})"
    )
    standings: dict[str, list[str]] = {}
    for row in rows:
        if row is not reference:
            standings.setdefault(standing(row, reference), []).append(f"<b>{escape(row.label)}</b>")
    for found, labels in standings.items():
        be = "are" if len(labels) > 1 else "is"
        if found == NO_DIFFERENCE:
            text += f"; {NO_DIFFERENCE} between {escape(reference.label)} and {_listed(labels)}"
        else:
            text += f"; {_listed(labels)} {be} {escape(found)}"
    return f"{text}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _videos(shown: Sequence[tuple[int, str, Seen]]) -> str:
    figures = []
    for number, label, seen in shown:
        for video in seen.videos:
            source = base64.b64encode(video.mp4).decode()
            outcome = '<b class="good">✓ success</b>' if video.success else '<b class="bad">✕ failure</b>'
            figures.append(
                f'<figure><video controls muted loop playsinline preload="metadata" '
                f'aria-label="{escape(label)}, start {video.seed}" '
                f'src="data:video/mp4;base64,{source}"></video>'
                f"<figcaption>{mark(number)}{escape(label)}<span>start {video.seed} · {outcome}</span>"
                "</figcaption></figure>"
            )
    if not figures:
        return '<p class="note">None were made.</p>'
    note = "Real time, with the futures that the policy saw, and where it expected the block to go."
    return f'<div class="videos">{"".join(figures)}</div><p class="note">{note}</p>'


def _settings(shown: Sequence[tuple[int, str, Seen]]) -> str:
    known = [(label, seen) for _, label, seen in shown if seen.record is not None]
    parts = [settings_table(known)] if len(known) > 1 else []
    for number, label, seen in shown:
        parts.append(f"<details><summary>{mark(number)}{escape(label)}</summary>{_about(seen)}</details>")
    return "\n".join(parts)


def _about(seen: Seen) -> str:
    """All that is known of how a run came about."""
    record = seen.record
    if record is None:
        return "<p>Known from a comparison's file alone: outcomes and costs, no settings.</p>"
    demos = record.demos
    facts = {
        "run": seen.path,
        "trained on": f"{demos.episodes} demonstrations, {demos.frames} frames, {demos.source}",
        "their fingerprint": demos.fingerprint,
        "training seed": record.seed,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "sampled with": json.dumps(dict(seen.entry.sampling)),
    }
    lines = "".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    config = escape(json.dumps(record.config.to_dict(), indent=2))
    return f"<dl>{lines}</dl><pre tabindex=0>{config}</pre>"


def _missing_logs(shown: Sequence[tuple[int, str, Seen]]) -> str:
    missing = [label for _, label, seen in shown if not seen.curves]
    return f"No log of training was kept for {_listed(missing)}." if missing else ""


def _left_out(entries: int) -> str:
    if not entries:
        return ""
    return (
        f'<p class="note">{entries} more were played under other settings or troubles, which '
        "<code>nsde-policy compare</code> shows.</p>"
    )


def _machine(report: Report) -> str:
    played = ", ".join(f"{what}: {where}" for what, where in report.comparison.machine.items())
    here = ", ".join(f"{name} {version}" for name, version in find_versions().items())
    return f"{played}; this page: {here}"


def _data(report: Report, shown: Sequence[tuple[int, str, Seen]]) -> dict[str, Any]:
    """What the scripts draw from."""
    return {
        "marks": MARKS,
        "colours": COLOURS,
        "side": geometry.SIDE,
        "outline": geometry.OUTLINE,
        "goal": geometry.GOAL_POSE,
        "radius": geometry.AGENT_RADIUS,
        "threshold": geometry.SUCCESS_COVERAGE,
        "hz": CONTROL_HZ,
        "scales": SCALES,
        "starts": report.comparison.main_rows()[0].starts,
        "runs": [
            {
                "label": label,
                "row": number,
                "success": [int(won) for won in seen.entry.episodes.success],
                "reward": seen.entry.episodes.max_reward,
                "steps": seen.entry.episodes.steps,
                "lengths": seen.replays.lengths if seen.replays else None,
                "curves": {
                    name: [[_rounded(x), _rounded(y)] for x, y in points]
                    for name, points in (seen.curves or {}).items()
                },
            }
            for number, label, seen in shown
        ],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _json(values: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends one."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _policy(style: str, script: str) -> str:
    """What the page may do: its own style and script, by their hashes, and pictures and films it holds."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def _file(name: str, package: str = "nsde_policy.eval.report") -> str:
    return (resources.files(package) / name).read_text(encoding="utf-8")
