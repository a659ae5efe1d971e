"""Section of a report with the frames that a video model predicts under the plans of policies."""

import base64
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

from nsde_policy.eval.report.tables import format_html_table, format_mark
from nsde_policy.eval.video.evaluate import VIDEO_FIGURES
from nsde_policy.eval.video.figures import encode_animation, encode_film_strip
from nsde_policy.eval.video.plan import PlanPrediction

STRIP_COLUMNS = 16
"""Most frames of a film strip."""


def format_predictions(found: Sequence[tuple[int, str, PlanPrediction]]) -> str:
    """Format the section, given row, label and predictions of each policy; empty for none."""
    if not found:
        return ""
    page = (resources.files("nsde_policy.eval.report") / "prediction.html").read_text(encoding="utf-8")
    parts = "".join(_format_policy(number, label, prediction) for number, label, prediction in found)
    return Template(page).substitute(parts=parts, model=escape(found[0][2].model))


def _format_policy(number: int, label: str, found: PlanPrediction) -> str:
    files = {
        "png": encode_film_strip(found.context, found.rows, STRIP_COLUMNS),
        "gif": encode_animation(found.context, found.rows, period_s=found.period_s),
    }
    pictures = "".join(
        f'<div class="wide {kind}-film" tabindex="0"><img alt="{escape(label)}: true and predicted frames" '
        f'src="data:image/{kind};base64,{base64.b64encode(content).decode()}"></div>'
        for kind, content in files.items()
    )
    rows = found.scores.rows
    figures = list(next(iter(rows.values())).sums)
    lines = [
        [escape(title), *(escape(str(row.estimate(name))) for name in figures)] for title, row in rows.items()
    ]
    return (
        f"<h3>{format_mark(number)}{escape(label)}</h3>"
        f'<p class="facts">The next {found.seconds:g} s. Pictures: start {found.seeds[0]}, control period '
        f"{found.periods[0]}. Table: one plan on each of {len(found.seeds)} starts.</p>{pictures}"
        f"{format_html_table('prediction', ['frames', *(VIDEO_FIGURES[name] for name in figures)], lines)}"
    )
