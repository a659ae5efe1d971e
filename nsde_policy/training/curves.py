"""A picture of the losses of a training run."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.files import replace_file
from nsde_policy.run_directory import RunDirectory

from .recorder import VALIDATION_PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLEAR_RISE = 0.05
"""A rise of the held-out loss is clear from this fraction of its fall on."""
DOTTED_POINTS = 50
"""Curves of fewer points show each of them."""


def describe_overfitting(run: RunDirectory) -> str | None:
    """Describe in one line when the held-out loss was lowest, if it was clearly higher at the end."""
    losses: dict[int, float] = {}
    for record in run.read_metrics():
        if parts := [loss for name, loss in record.items() if name.startswith(VALIDATION_PREFIX)]:
            losses[int(record["step"])] = sum(parts)
    if not losses:
        return None
    lowest = min(losses, key=losses.__getitem__)
    first, best, last = losses[min(losses)], losses[lowest], losses[max(losses)]
    if last - best <= CLEAR_RISE * (first - best) or last == best:
        return None
    return (
        f"the held-out loss was lowest at step {lowest}, {best:.3g}, and is {last:.3g} now: compare this run "
        f"by `score` with one trained with --steps {lowest}"
    )


def plot_training(run: RunDirectory) -> Path | None:
    """Draw losses over the steps, those on held-out episodes dashed.

    Return the picture; None without matplotlib, or if no losses were recorded.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    records = list(run.read_metrics())
    names = {name: None for record in records for name in record if name not in ("step", "seconds")}
    losses = [name for name in names if VALIDATION_PREFIX not in name]
    if not losses:
        return None
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axis = figure.subplots()
    for name, colour in zip(losses, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False):
        _plot_curve(axis, records, name, "-", colour, name)
        _plot_curve(axis, records, VALIDATION_PREFIX + name, "--", colour, f"{name}, held out")
    axis.set_xlabel("step")
    axis.set_ylabel("loss")
    axis.legend(frameon=False, ncols=len(losses), loc="lower left", bbox_to_anchor=(0, 1))
    axis.spines[["top", "right"]].set_visible(False)
    axis.ticklabel_format(axis="y", useOffset=False)  # -1322 instead of -2 below "-1.32e3"
    path, picture = run.path / "training.png", io.BytesIO()
    figure.savefig(picture, dpi=130)
    replace_file(path, picture.getvalue())
    return path


def _plot_curve(
    axis: "Axes", records: list[dict[str, float]], name: str, line: str, colour: str, label: str
) -> None:
    """Draw a figure of the metrics over the steps, if it was recorded."""
    points = [(record["step"], record[name]) for record in records if name in record]
    if points:
        marker = "o" if len(points) < DOTTED_POINTS else ""  # a line of one point is invisible
        axis.plot(*zip(*points, strict=True), line, color=colour, label=label, marker=marker)
