"""HTML page of a report: sections with tables and pictures, data and scripts in one file without network."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

from nsde_policy.run_directory import RunRecord, find_versions
from nsde_policy.tasks import Task
from nsde_policy.version import __version__

from ..compare.entries import Entry
from ..compare.result import Comparison
from ..compare.table import list_tables
from .tables import COLOURS, MARKS, format_settings_table, format_table


class ShownRun(NamedTuple):
    """A run in the order of the score table."""

    row: int
    label: str
    entry: Entry


class Section(NamedTuple):
    """Part of the page, with a link in its head; one without a body is left out."""

    name: str
    title: str
    body: str


def format_page(comparison: Comparison, records: Mapping[Path, RunRecord]) -> str:
    """Format a comparison as HTML.

    `records` has the settings of each run by its directory, in the order of the entries.
    """
    shown = _list_shown_runs(comparison)
    task, rows = comparison.task_info, comparison.rows
    seeds = comparison.entries[0].episodes.seed
    sections = [each for each in _list_sections(comparison, shown, records) if each.body]
    style, script = _read_page_file("page.css"), _join_scripts(task)
    best, deciding = rows[0], comparison.columns[-1]
    policies = f"{len(rows)} polic{'y' if len(rows) == 1 else 'ies'}"
    title = f"{task.reporting.title or task.name}: {policies} on {len(seeds)} seeds"
    return Template(_read_page_file("page.html")).substitute(
        policy=format_security_policy(style, script),
        style=style,
        script=script,
        title=escape(title),
        summary=f"<b>{escape(best.label)}</b>: "
        f"{escape(comparison.column_title(deciding))} {getattr(best, deciding)}",
        facts=escape(f"{comparison.seeds_title}, the same for all; final weights"),
        second_section=sections[1].name,
        links="".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections),
        sections="\n".join(
            f'<section id="{name}">\n<h2>{title}</h2>\n{body}\n</section>' for name, title, body in sections
        ),
        made=escape(f"nsde-policy {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        data=encode_json(_build_data(comparison, shown)),
        frames="".join(
            f'<script type="text/plain" id="frames-{i}">{each.entry.frames}</script>\n'
            for i, each in enumerate(shown)
            if each.entry.frames
        ),
    )


def _list_shown_runs(comparison: Comparison) -> list[ShownRun]:
    shown = []
    for number, row in enumerate(comparison.rows):
        for entry in row.entries:
            seed = f", seed {entry.train_seed}" if len(row.entries) > 1 else ""
            shown.append(ShownRun(number, row.label + seed, entry))
    return shown


def _list_sections(
    comparison: Comparison,
    shown: Sequence[ShownRun],
    records: Mapping[Path, RunRecord],
) -> list[Section]:
    drawing = comparison.task_info.drawing
    numbers = {row.label: number for number, row in enumerate(comparison.rows)}
    tables = {table.name: format_table(table, numbers) for table in list_tables(comparison)}
    explorer = Template(_read_page_file("explorer.html")).substitute(
        progress=escape(drawing.progress_name.capitalize())
    )
    return [
        Section("scores", "Scores", tables["scores"]),
        Section("explorer", "Episodes", explorer if drawing.scene() else ""),
        Section("differences", "Differences", tables.get("differences", "<p>Only one policy.</p>")),
        Section("settings", "Settings", _format_settings(comparison, shown, records)),
    ]


def _format_settings(
    comparison: Comparison, shown: Sequence[ShownRun], records: Mapping[Path, RunRecord]
) -> str:
    """Format the settings in which runs differ, machines and versions."""
    labels = {id(entry): label for _, label, entry in shown}
    entries = zip(comparison.entries, records.items(), strict=bool(records))
    runs = {labels[id(entry)]: run for entry, run in entries}
    versions = ", ".join(" ".join(each) for each in find_versions().items())
    machines = [*comparison.machine.items(), ("this page", versions)]
    note = "; ".join(f"{role}: {device}" for role, device in machines)
    return f'{format_settings_table(runs)}\n<p class="note">{escape(note)}</p>'


def _build_data(comparison: Comparison, shown: Sequence[ShownRun]) -> dict[str, object]:
    """Build what the page's scripts read: the scene, and the outcomes of every run."""
    task = comparison.task_info
    scene = task.drawing.scene()
    runs = []
    for number, label, entry in shown:
        episodes = entry.episodes
        values = {
            "label": label,
            "row": number,
            "success": episodes.success and list(map(int, episodes.success)),
            "score": episodes.score,
            "steps": episodes.steps,
            "success_step": episodes.success_step or episodes.steps,
            # one frame before each action, and the last one
            "lengths": [steps + 1 for steps in episodes.steps] if entry.frames else None,
        }
        runs.append(values)
    return {
        "marks": MARKS,
        "colours": COLOURS,
        **(scene.geometry if scene else {}),
        "threshold": task.drawing.success_progress,
        "score": task.score_name.split("_")[-1],
        "hz": task.rate_hz,
        "scales": scene.scales if scene else [],
        "seeds": comparison.entries[0].episodes.seed,
        "runs": runs,
    }


def _join_scripts(task: Task) -> str:
    """Return the scripts that draw recorded episodes; empty if the task has no scene."""
    scene = task.drawing.scene()
    if scene is None:
        return ""
    canvas = (resources.files("nsde_policy.envs") / "canvas.js").read_text(encoding="utf-8")
    own = [_read_page_file(name) for name in ("page.js", "charts.js", "replays.js", "explorer.js")]
    return "\n".join([*own[:2], canvas, scene.script, *own[2:]])


def encode_json(values: object) -> str:
    """Encode JSON for a script element, without any "<" that could end the element."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def format_security_policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows the page's own style, script and images only."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _read_page_file(name: str) -> str:
    """Read a template, style sheet or script of this folder."""
    return (resources.files("nsde_policy.eval.report") / name).read_text(encoding="utf-8")
