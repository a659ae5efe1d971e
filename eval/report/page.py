"""HTML page of a report: sections with tables and pictures, data and scripts in one file without network."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from string import Template
from typing import NamedTuple

from nsde_policy import __version__
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.compare.table import list_tables
from nsde_policy.eval.offline.comparison import OfflineComparison
from nsde_policy.eval.report.collect import ReportRun, read_all_curves
from nsde_policy.eval.report.sections import (
    Section,
    ShownRun,
    format_explorer,
    format_offline,
    format_paths,
    format_settings,
    format_training,
    format_videos,
    read_page_file,
)
from nsde_policy.eval.report.tables import COLOURS, MARKS, format_table
from nsde_policy.tasks import Scene

SCRIPTS = ("page.js", "charts.js")
SCENE_SCRIPTS = ("replays.js", "explorer.js")
"""Scripts that need the scene of the task, which draws recorded episodes."""
CURVE_DIGITS = 5
"""Significant digits of numbers in curves."""


class Content(NamedTuple):
    """What a page says: head, sections, and data for its scripts."""

    title: str
    summary: str
    facts: str
    sections: list[Section]
    data: dict[str, object]
    scene: Scene | None = None


def format_page(
    comparison: Comparison | None,
    runs: Sequence[ReportRun],
    *,
    title: str | None = None,
    reference: str | None = None,
    offline: OfflineComparison | None = None,
) -> str:
    """Format a report as HTML.

    Args:
        comparison: Result of `collect_report`; None if the runs have no environment.
        runs: Result of `collect_report`, empty without a comparison.
        title: Title of the page.
        reference: Name of the row to compare others with.
        offline: Scores on recorded episodes.
    """
    machine: Mapping[str, str] = {}
    if comparison is not None:
        shown = _list_shown_runs(runs, comparison.main_rows())
        found, machine = _describe_rollouts(comparison, shown, reference), comparison.machine
    else:
        assert offline is not None
        shown = []
        for i, run in enumerate(offline.runs):
            assert run.path is not None
            known = ReportRun(None, str(run.path), run.record, curves=read_all_curves(run.path))
            shown.append(ShownRun(i, run.label, known))
        found = _describe_recorded(offline)
    if offline is not None:
        found.sections.append(format_offline(offline, shown))
    found.sections.extend([format_training(shown), format_settings(shown, machine)])
    return _fill_template(found, shown, title or found.title)


def _fill_template(content: Content, shown: Sequence[ShownRun], title: str) -> str:
    sections = [section for section in content.sections if section.body]
    style = read_page_file("page.css")
    scripts = [*map(read_page_file, SCRIPTS)]
    if content.scene is not None:
        scripts += [_read_canvas_helpers(), content.scene.script, *map(read_page_file, SCENE_SCRIPTS)]
    script = "\n".join(scripts)
    return Template(read_page_file("page.html")).substitute(
        policy=_format_security_policy(style, script),
        style=style,
        script=script,
        title=escape(title),
        summary=content.summary,
        facts=escape(content.facts),
        second_section=sections[1].name,
        links="".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections),
        sections="\n".join(
            f'<section id="{name}">\n<h2>{heading}</h2>\n{body}\n</section>'
            for name, heading, body in sections
        ),
        made=escape(f"nsde-policy {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        data=_encode_json({**content.data, "runs": list(map(_build_run_data, shown))}),
        frames="".join(
            f'<script type="text/plain" id="frames-{i}">{each.run.replays.encode()}</script>\n'
            for i, each in enumerate(shown)
            if each.run.replays is not None
        ),
    )


def _describe_rollouts(comparison: Comparison, shown: Sequence[ShownRun], reference: str | None) -> Content:
    """Describe episodes in an environment, with the parts that the task and the runs have."""
    task, rows = comparison.task_info, comparison.main_rows()
    base = comparison.reference(reference)
    scene = task.drawing.scene()
    numbers = {row.label: number for number, row in enumerate(rows)}
    tables = {
        table.name: format_table(table, numbers) for table in list_tables(comparison, reference=reference)
    }
    hidden = len(comparison.entries) - len(shown)
    more = (
        f'<p class="note">{hidden} more were rolled out under other settings or disturbances, which '
        "<code>nsde-policy compare</code> shows.</p>"
    )
    sections = [
        Section("scores", "Scores", tables["scores"] + (more if hidden else "")),
        Section("paths", "Paths", format_paths(comparison)),
        Section("explorer", "Episodes", format_explorer(task) if scene else ""),
        Section("videos", "Videos", format_videos(shown, comparison.score_word)),
        Section("differences", "Differences", tables.get("differences", "<p>Only one policy.</p>")),
    ]
    data = {
        "marks": MARKS,
        "colours": COLOURS,
        **(scene.geometry if scene else {}),
        "threshold": task.drawing.success_progress,
        "score": comparison.score_word,
        "hz": task.rate_hz,
        "scales": scene.scales if scene else [],
        "seeds": base.first.episodes.seed,
    }
    policies = f"{len(rows)} polic{'y' if len(rows) == 1 else 'ies'}"
    best, deciding = rows[0], comparison.columns[-1]
    return Content(
        f"{task.reporting.title or task.name}: {policies} on {len(base.first.episodes)} seeds",
        f"<b>{escape(best.label)}</b>: {escape(comparison.column_title(deciding))} {getattr(best, deciding)}",
        f"{comparison.seeds_title}, the same for all; final weights",
        sections,
        data,
        scene,
    )


def _describe_recorded(offline: OfflineComparison) -> Content:
    """Describe runs that have recorded episodes alone."""
    policies = f"{len(offline.runs)} polic{'y' if len(offline.runs) == 1 else 'ies'}"
    title = f"{policies} on {offline.episodes} recorded episodes"
    data = {"marks": MARKS, "colours": COLOURS}
    return Content(title, "", f"{offline.note}; without an environment", [], data)


def _list_shown_runs(runs: Sequence[ReportRun], rows: Sequence[Row]) -> list[ShownRun]:
    by_entry = {id(run.entry): run for run in runs}
    shown = []
    for number, row in enumerate(rows):
        for entry in row.entries:
            seed = f", seed {entry.train_seed}" if len(row.entries) > 1 else ""
            shown.append(ShownRun(number, row.label + seed, by_entry[id(entry)]))
    return shown


def _build_run_data(shown: ShownRun) -> dict[str, object]:
    """Build what the page's scripts read of a run: curves and outcomes."""
    number, label, run = shown
    curves = {
        name: [[float(f"{value:.{CURVE_DIGITS}g}") for value in point] for point in points]
        for name, points in run.curves.items()
    }
    found: dict[str, object] = {"label": label, "row": number, "curves": curves}
    if run.entry is None:
        return found
    episodes = run.entry.episodes
    return found | {
        "success": episodes.success and list(map(int, episodes.success)),
        "score": episodes.score,
        "steps": episodes.steps,
        "success_step": episodes.success_step or episodes.steps,
        "lengths": run.replays.lengths if run.replays else None,
    }


def _encode_json(values: object) -> str:
    """Encode JSON for a script element, without any "<" that could end the element."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _format_security_policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows the page's own style, script, images and videos only."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )


def _read_canvas_helpers() -> str:
    return (resources.files("nsde_policy.envs") / "canvas.js").read_text(encoding="utf-8")
