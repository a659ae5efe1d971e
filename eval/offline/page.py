"""HTML of scores on recorded episodes: a section of a report, or a page of its own."""

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from nsde_policy import __version__
from nsde_policy.errors import CheckpointError
from nsde_policy.eval.offline.comparison import OfflineComparison
from nsde_policy.eval.offline.figures import render_offline_comparison
from nsde_policy.eval.report.tables import format_html_table, format_settings_table
from nsde_policy.files import read_file

MAX_PICTURE_BYTES = 16 * 2**20
"""Larger pictures of training curves are not read."""


def format_offline_section(comparison: OfflineComparison) -> str:
    """Format tables and figure as a section of a report."""
    tables = "".join(
        format_html_table("offline", head, [list(map(_format_cell, line)) for line in lines])
        for head, lines in comparison.tables()
    )
    figure = _format_image(render_offline_comparison(comparison), "Action error by horizon and coverage")
    return (
        f'<section id="offline"><h2>Recorded episodes</h2>{tables}{figure}'
        f'<p class="note">{escape(comparison.explain())}</p></section>\n'
    )


def format_offline_page(comparison: OfflineComparison, *, title: str | None = None) -> str:
    """Format a self-contained page for runs without an environment: scores, training curves, settings."""
    style = (resources.files("nsde_policy.eval.report") / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    runs, best = comparison.runs, comparison.reference
    count = f"{len(runs)} polic{'y' if len(runs) == 1 else 'ies'}"
    template = resources.files("nsde_policy.eval.offline") / "page.html"
    return Template(template.read_text(encoding="utf-8")).substitute(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'",
        style=style,
        title=escape(title or f"{count} on {len(best.score.context['episodes'])} recorded episodes"),
        facts=escape(f"{comparison.note}; no environment was played"),
        offline=format_offline_section(comparison),
        curves="".join(_format_curves(run.path, run.label) for run in runs)
        or '<p class="note">No training curves.</p>',
        settings=_format_records(comparison),
        made=escape(f"nsde-policy {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
    )


def _format_cell(text: str) -> str:
    """Format a cell, with an interval in brackets kept on one line."""
    value, bracket, interval = text.partition(" [")
    if not bracket:
        return escape(text)
    return f"<b>{escape(value)}</b> <span class=interval>[{escape(interval)}</span>"


def _format_curves(path: Path, label: str) -> str:
    """Embed the training curves of a run, if they were drawn."""
    picture = path / "training.png"
    if not os.path.lexists(picture):
        return ""
    content = read_file(picture, MAX_PICTURE_BYTES, error=CheckpointError)
    return f"<h3>{escape(label)}</h3>{_format_image(content, f'Losses of {label}')}"


def _format_records(comparison: OfflineComparison) -> str:
    records = [(run.label, run.record) for run in comparison.runs]
    parts: Sequence[str] = [
        f"<details><summary>{escape(label)}</summary><pre tabindex=0>"
        f"{escape(json.dumps(json.loads(record.to_json()), indent=2))}</pre></details>"
        for label, record in records
    ]
    return "".join([format_settings_table(records) if len(records) > 1 else "", *parts])


def _format_image(png: bytes, text: str) -> str:
    source = base64.b64encode(png).decode()
    return f'<p><img class="plot" alt="{escape(text)}" src="data:image/png;base64,{source}"></p>'
