"""Sections of a report as HTML: paths, videos, recorded episodes, training and settings."""

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import NamedTuple

from nsde_policy.eval.compare.path_plots import render_paths
from nsde_policy.eval.compare.result import Comparison
from nsde_policy.eval.offline.comparison import OfflineComparison
from nsde_policy.eval.offline.figures import render_offline_comparison
from nsde_policy.eval.report.collect import ReportRun
from nsde_policy.eval.report.tables import format_mark, format_settings_table, format_table
from nsde_policy.eval.tables import format_mean
from nsde_policy.run_directory import find_versions
from nsde_policy.tasks import Task


class ShownRun(NamedTuple):
    """A run in the order of the score table."""

    row: int
    label: str
    run: ReportRun


class Section(NamedTuple):
    """Part of the page, with a link in its head; one without a body is left out."""

    name: str
    title: str
    body: str


def _format_image(png: bytes, text: str) -> str:
    source = base64.b64encode(png).decode()
    return f'<img class="plot" alt="{escape(text)}" src="data:image/png;base64,{source}">'


def format_paths(comparison: Comparison) -> str:
    """Format a picture of all paths; empty if the task does not say what to draw."""
    picture = render_paths(comparison)
    if picture is None:
        return ""
    image = _format_image(picture, "Paths of all episodes, one panel per policy")
    return (
        f'<div class="wide">{image}</div>'
        '<p class="note">Every distinct path, coloured by its mode; failures are grey and end in a cross.</p>'
    )


def format_explorer(task: Task) -> str:
    """Format the player of recorded episodes."""
    return Template(read_page_file("explorer.html")).substitute(
        progress=escape(task.drawing.progress_name.capitalize())
    )


def format_videos(shown: Sequence[ShownRun], score_word: str) -> str:
    """Format the videos of all runs, or why there are none."""
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
                f'aria-label="{escape(label)}, seed {video.seed}" '
                f'src="data:video/mp4;base64,{source}"></video>'
                f"<figcaption>{format_mark(number)}{escape(label)}"
                f"<span>seed {video.seed} · {outcome}</span></figcaption></figure>"
            )
    notes = [f"{label}: {run.no_videos}." for _, label, run in shown if run.no_videos]
    if not figures:
        return f'<p class="note">{escape(" ".join(notes) or "None were made.")}</p>'
    forecast = any(video.forecast for _, _, run in shown for video in run.videos)
    notes.insert(0, "Real time, with the futures that the policy sampled." if forecast else "Real time.")
    return f'<div class="videos">{"".join(figures)}</div><p class="note">{escape(" ".join(notes))}</p>'


def format_offline(offline: OfflineComparison, shown: Sequence[ShownRun]) -> Section:
    """Format tables and figure of the scores on recorded episodes."""
    numbers = {label: number for number, label, _ in shown}
    tables = "".join(format_table(table, numbers) for table in offline.tables())
    figure = _format_image(render_offline_comparison(offline), "Action error by horizon and coverage")
    return Section("offline", "Recorded episodes", f"{tables}<p>{figure}</p>")


def format_training(shown: Sequence[ShownRun]) -> Section:
    """Format the place of the training curves, which a script draws."""
    unlogged = [label for _, label, run in shown if not run.curves]
    note = f"No training log for {', '.join(unlogged)}." if unlogged else ""
    return Section("training", "Training", f'<div class="curves"></div>\n<p class="note">{escape(note)}</p>')


def format_settings(shown: Sequence[ShownRun], machine: Mapping[str, str]) -> Section:
    """Format settings that differ, and for each run all settings, demonstrations and versions."""
    records = [(label, run.record) for _, label, run in shown if run.record is not None]
    parts = [format_settings_table(records)] if len(records) > 1 else []
    for number, label, run in shown:
        parts.append(
            f"<details><summary>{format_mark(number)}{escape(label)}</summary>{_format_run(run)}</details>"
        )
    facts = [*machine.items(), ("this page", ", ".join(" ".join(each) for each in find_versions().items()))]
    note = "; ".join(f"{role}: {device}" for role, device in facts)
    return Section("settings", "Settings", "\n".join([*parts, f'<p class="note">{escape(note)}</p>']))


def _format_run(run: ReportRun) -> str:
    """Format how a run was trained: demonstrations, seed, versions and all settings."""
    record = run.record
    if record is None:
        return "<p>From the file of a comparison, which holds outcomes and costs but no settings.</p>"
    demos = record.demos
    sampling = record.config.model.sampling.to_dict() if run.entry is None else dict(run.entry.sampling)
    facts = {
        "run": run.path,
        "trained on": f"{demos.episodes} demonstrations, {demos.frames} frames, {demos.source}",
        "their fingerprint": demos.fingerprint,
        "held out": ", ".join(map(str, demos.held_out)) or "none",
        "training seed": record.seed,
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "sampled with": json.dumps(sampling),
    }
    lines = "".join(f"<dt>{key}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
    config = escape(json.dumps(record.config.to_dict(), indent=2))
    return f"<dl>{lines}</dl><pre tabindex=0>{config}</pre>"


def read_page_file(name: str) -> str:
    """Read a template, style sheet or script of this folder."""
    return (resources.files("nsde_policy.eval.report") / name).read_text(encoding="utf-8")
