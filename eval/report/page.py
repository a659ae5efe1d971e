"""HTML page of a report: texts, tables, data and scripts in one file that needs no network."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from string import Template
from typing import Any, NamedTuple

from nsde_policy import __version__
from nsde_policy.eval.compare.path_plots import render_paths
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.compare.row import Row
from nsde_policy.eval.compare.table import MODE_RULE, SAMPLE_RULE, explain_modes, format_mean
from nsde_policy.eval.report import tables
from nsde_policy.eval.report.collect import ReportRun
from nsde_policy.eval.statistics import MIN_PAIRS, NO_DIFFERENCE, Estimate
from nsde_policy.run_directory import find_versions
from nsde_policy.tasks import Task

SCRIPTS = ("page.js", "charts.js")
SCENE_SCRIPTS = ("replays.js", "explorer.js")
"""Scripts that need the scene of the task, which draws recorded episodes."""
TEST_NOTES = {
    "success": "Won : lost: starts on which only this policy, or only the reference, succeeded. Ahead: the "
    f"interval excludes 0 and McNemar's exact p < 0.05. {SAMPLE_RULE}",
    "score": f"Ahead: the interval excludes 0. {SAMPLE_RULE}",
}
"""How the verdict is reached, by the column that decides."""
EPISODE_LINKS = '<a href="#explorer">Episodes</a><a href="#sheets">Contact sheets</a>'
TOO_FEW = "too few distinct paths or starts to show a difference"
CURVE_DIGITS = 5
"""Significant digits of numbers in curves."""


class ShownRun(NamedTuple):
    """A run in the order of the score table."""

    row: int
    label: str
    run: ReportRun


def format_page(
    comparison: Comparison,
    runs: Sequence[ReportRun],
    *,
    title: str | None = None,
    reference: str | None = None,
    offline: str = "",
) -> str:
    """Format a report as HTML, given `collect_report`'s results and the row to compare others with.

    `offline` is a section about scores on recorded episodes.
    """
    task, rows = comparison.task_info, comparison.main_rows()
    base, shown = comparison.reference(reference), _list_shown_runs(runs, rows)
    scene, style = task.drawing.scene(), _read_file("page.css")
    scene_scripts = [_read_canvas_helpers(), scene.script, *map(_read_file, SCENE_SCRIPTS)] if scene else []
    script = "\n".join([*map(_read_file, SCRIPTS), *scene_scripts])
    name = task.reporting.title or task.name
    policies = f"{len(rows)} polic{'y' if len(rows) == 1 else 'ies'}"
    unlogged = [label for _, label, run in shown if not run.curves]
    return Template(_read_file("page.html")).substitute(
        policy=_format_security_policy(style, script),
        style=style,
        script=script,
        title=escape(title or f"{name}: {policies} on {len(base.first.episodes)} starts"),
        facts=escape(f"{comparison.starts_title}, the same for all; final weights"),
        summary=_format_summary(comparison, base),
        scores=tables.format_score_table(comparison, base),
        score_note=escape(task.reporting.score_note),
        modes=_format_modes(comparison, base),
        modes_link='<a href="#modes">Modes</a>' if comparison.mode_rows() else "",
        first_section="explorer" if scene else "videos",
        episode_links=EPISODE_LINKS if scene else "",
        episodes=_format_episodes(task) if scene else "",
        differences=tables.format_difference_table(comparison, base)
        or "<p>One policy: nothing to compare it with.</p>",
        test_note=escape(TEST_NOTES[comparison.columns[-1]] + (f" {MODE_RULE}" if base.outcomes else "")),
        videos=_format_videos(shown, comparison.score_word),
        camera=_format_camera(shown),
        camera_links=_format_camera_links(shown),
        offline=offline,
        offline_link='<a href="#offline">Recorded episodes</a>' if offline else "",
        logs=escape(f"No training log for {_join_names(unlogged)}." if unlogged else ""),
        settings=_format_settings(shown),
        left_out=_format_hidden(len(runs) - len(shown)),
        machine=escape(_format_machine(comparison)),
        made=escape(f"nsde-policy {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        data=_encode_json(_build_data(comparison, shown)),
        frames="".join(
            f'<script type="text/plain" id="frames-{i}">{each.run.replays.encode()}</script>\n'
            for i, each in enumerate(shown)
            if each.run.replays is not None
        ),
    )


def _format_hidden(count: int) -> str:
    """Say how many runs the page does not show."""
    return (
        f'<p class="note">{count} more were played under other settings or disturbances, which '
        "<code>nsde-policy compare</code> shows.</p>"
        if count
        else ""
    )


def _format_modes(comparison: Comparison, reference: Row) -> str:
    """Format the section about modes, with a picture of all paths; empty if the task has no modes."""
    rows = comparison.mode_rows()
    if not rows:
        return ""
    picture = render_paths(comparison)
    drawn = picture and (
        f'<div class="wide"><img class="plot" alt="Paths of all episodes by mode, one panel per policy" '
        f'src="data:image/png;base64,{base64.b64encode(picture).decode()}"></div>'
        '<p class="note">Every distinct path, coloured by its mode; failures are grey and end in a cross. '
        "Bars: share of each mode among the successes; dotted: all modes alike.</p>"
    )
    return (
        f'<section id="modes"><h2>Modes</h2>{tables.format_mode_table(comparison, reference)}'
        f'<p class="note">{escape(explain_modes(rows))}</p>{drawn or ""}</section>\n'
    )


def _format_episodes(task: Task) -> str:
    """Format the sections that play recorded episodes and show their last frames."""
    progress = escape(task.drawing.progress_name.capitalize())
    return Template(_read_file("episodes.html")).substitute(progress=progress)


def _list_shown_runs(runs: Sequence[ReportRun], rows: Sequence[Row]) -> list[ShownRun]:
    by_entry = {id(run.entry): run for run in runs}
    shown = []
    for number, row in enumerate(rows):
        for entry in row.entries:
            seed = f", seed {entry.train_seed}" if len(row.entries) > 1 else ""
            shown.append(ShownRun(number, row.label + seed, by_entry[id(entry)]))
    return shown


def _format_summary(comparison: Comparison, reference: Row) -> str:
    """Summarise the best row and how the others rank against the reference, in one sentence."""
    rows, deciding = comparison.main_rows(), comparison.columns[-1]
    best: Estimate = getattr(rows[0], deciding)
    numbers = (best.value, best.low, best.high)
    text = f"<b>{escape(rows[0].label)}</b> "
    if deciding == "success":
        value, low, high = (f"{100 * number:.1f} %" for number in numbers)
        text += f"succeeds in {value} of its episodes "
    else:
        value, low, high = map(format_mean, numbers)
        text += f"has a {escape(comparison.score_title)} of {value} "
    one_path = "(one distinct path: n = 1, no interval)"
    text += one_path if best.n == 1 else f"(95 % interval {low} to {high})"
    ranks: dict[str, list[str]] = {}
    for row in rows:
        if row is not reference:
            few = row.difference(reference, deciding).n < MIN_PAIRS
            rank = TOO_FEW if few else tables.rank_row(row, reference, deciding)
            ranks.setdefault(rank, []).append(f"<b>{escape(row.label)}</b>")
    for rank, labels in ranks.items():
        if rank in (NO_DIFFERENCE, TOO_FEW):
            text += f"; {rank} between {escape(reference.label)} and {_join_names(labels)}"
        else:
            text += f"; {_join_names(labels)} {'are' if len(labels) > 1 else 'is'} {escape(rank)}"
    return f"{text}."


def _join_names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _format_videos(shown: Sequence[ShownRun], score_word: str) -> str:
    figures = []
    for number, label, run in shown:
        for video in run.videos:
            source = base64.b64encode(video.mp4).decode()
            outcome = {
                None: escape(f"{score_word} {format_mean(video.score)}"),
                True: '<b class="good">✓ success</b>',
                False: '<b class="bad">✕ failure</b>',
            }[video.success]
            figures.append(
                f'<figure><video controls muted loop playsinline preload="metadata" '
                f'aria-label="{escape(label)}, start {video.seed}" '
                f'src="data:video/mp4;base64,{source}"></video>'
                f"<figcaption>{tables.format_mark(number)}{escape(label)}"
                f"<span>start {video.seed} · {outcome}</span>"
                "</figcaption></figure>"
            )
    notes = [f"{label}: {run.no_videos}." for _, label, run in shown if run.no_videos]
    if not figures:
        return f'<p class="note">{escape(" ".join(notes) or "None were made.")}</p>'
    forecast = any(video.forecast for _, _, run in shown for video in run.videos)
    notes.insert(0, "Real time, with the futures that the policy sampled." if forecast else "Real time.")
    return f'<div class="videos">{"".join(figures)}</div><p class="note">{escape(" ".join(notes))}</p>'


def _format_camera(shown: Sequence[ShownRun]) -> str:
    """Format the section with what policies with cameras see; empty if there are none."""
    parts = []
    for number, label, run in shown:
        if not run.moments or run.record is None:
            continue
        camera = run.record.cameras[0]
        pictures = "".join(
            f'<img alt="{escape(camera.name)} of {escape(label)}, moment {i + 1}, with keypoints" '
            f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
            for i, png in enumerate(run.moments)
        )
        parts.append(
            f"<h3>{tables.format_mark(number)}{escape(label)}</h3>"
            f'<p class="facts">{escape(camera.name)}, {camera.height} × {camera.width} px</p>'
            f'<div class="moments">{pictures}</div>'
        )
    return Template(_read_file("camera.html")).substitute(parts="".join(parts)) if parts else ""


def _format_camera_links(shown: Sequence[ShownRun]) -> str:
    """Format the link to the section about cameras, if the page has one."""
    return '<a href="#camera">Camera</a>' if any(each.run.moments for each in shown) else ""


def _format_settings(shown: Sequence[ShownRun]) -> str:
    records = [(label, run.record) for _, label, run in shown if run.record is not None]
    parts = [tables.format_settings_table(records)] if len(records) > 1 else []
    for number, label, run in shown:
        parts.append(
            f"<details><summary>{tables.format_mark(number)}{escape(label)}</summary>{_format_run(run)}</details>"
        )
    return "\n".join(parts)


def _format_run(run: ReportRun) -> str:
    """Format how a run was trained: demonstrations, seed, versions and all settings."""
    record = run.record
    if record is None:
        return "<p>From the file of a comparison, which holds outcomes and costs but no settings.</p>"
    demos = record.demos
    facts = {
        "run": run.path,
        "trained on": f"{demos.episodes} demonstrations, {demos.frames} frames, {demos.source}",
        "their fingerprint": demos.fingerprint,
        "training seed": record.seed,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "sampled with": json.dumps(dict(run.entry.sampling)),
    }
    lines = "".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    config = escape(json.dumps(record.config.to_dict(), indent=2))
    return f"<dl>{lines}</dl><pre tabindex=0>{config}</pre>"


def _format_machine(comparison: Comparison) -> str:
    played = ", ".join(f"{role}: {device}" for role, device in comparison.machine.items())
    here = ", ".join(f"{name} {version}" for name, version in find_versions().items())
    return f"{played}; this page: {here}"


def _build_data(comparison: Comparison, shown: Sequence[ShownRun]) -> dict[str, Any]:
    """Build the data that the page's scripts read."""
    task = comparison.task_info
    scene = task.drawing.scene()
    return {
        "marks": tables.MARKS,
        "colours": tables.COLOURS,
        **(scene.geometry if scene else {}),
        "threshold": task.drawing.success_progress,
        "score": comparison.score_word,
        "hz": task.rate_hz,
        "scales": scene.scales if scene else [],
        "starts": comparison.main_rows()[0].first.episodes.seed,
        "runs": [
            {
                "label": label,
                "row": number,
                "success": run.entry.episodes.success and list(map(int, run.entry.episodes.success)),
                "score": run.entry.episodes.score,
                "steps": run.entry.episodes.steps,
                "success_step": run.entry.episodes.success_step or run.entry.episodes.steps,
                "lengths": run.replays.lengths if run.replays else None,
                "curves": {
                    name: [[float(f"{value:.{CURVE_DIGITS}g}") for value in point] for point in points]
                    for name, points in run.curves.items()
                },
            }
            for number, label, run in shown
        ],
    }


def _encode_json(values: Any) -> str:
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


def _read_file(name: str) -> str:
    return (resources.files("nsde_policy.eval.report") / name).read_text(encoding="utf-8")
