"""Quick evaluations during training, and a plot of the losses."""

import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.files import replace_file
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.checkpoints import TrainingProgress, format_figures, save_weights
from nsde_policy.training.loop import VALIDATION_PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes

logger = logging.getLogger(__name__)

QUICK_SCORES = ("reward", "success")
"""Scores of a quick evaluation that are plotted."""
DOTTED_POINTS = 50
"""Curves of fewer points show each of them."""


class QuickEvaluations:
    """Monitor of a training run that evaluates its policy from time to time.

    Args:
        run: The run directory.
        steps: Number of training steps.
        every: Steps between evaluations.
        evaluate: Returns scores of the policy in a run directory, by name.
    """

    def __init__(
        self, run: RunDirectory, steps: int, every: int, evaluate: Callable[[Path], Mapping[str, float]]
    ) -> None:
        self._run = run
        self._steps = steps
        self._every = every
        self._evaluate = evaluate
        self._evaluated: int | None = None

    def __call__(self, progress: TrainingProgress) -> Mapping[str, float]:
        """Evaluate every `every` steps and at the end, and return the scores; ignore encoders."""
        if progress.title == "encoder" or not self._is_due(progress.step):
            return {}
        save_weights(self._run, progress.training)
        scores = self._evaluate(self._run.path)
        logger.info("step %d: %s", progress.step, format_figures(scores, ".3f"))
        return scores

    def _is_due(self, step: int) -> bool:
        """Return whether this record is the first at or after a multiple of `every`, or the last."""
        if self._evaluated is None:  # a resumed run has scores already
            scored = [int(line["step"]) for line in self._run.read_metrics() if line.keys() & {*QUICK_SCORES}]
            self._evaluated = max(scored, default=0)
        due = step // self._every > self._evaluated // self._every or step == self._steps
        self._evaluated = step if due else self._evaluated
        return due


def plot_training(run: RunDirectory) -> Path | None:
    """Draw losses, those on held-out episodes dashed, and quick evaluations over the steps.

    Returns:
        The picture; None without matplotlib, or if no losses were recorded.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    records = list(run.read_metrics())
    names = {name: None for record in records for name in record if name not in ("step", "seconds")}
    losses = [name for name in names if name not in QUICK_SCORES and not name.startswith(VALIDATION_PREFIX)]
    if not losses:
        return None
    panels = [losses, *([name] for name in QUICK_SCORES if name in names)]
    figure = Figure(figsize=(8, 1.0 + 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        for name, colour in zip(panel, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False):
            _plot_curve(axis, records, name, "-", colour, name)
            _plot_curve(axis, records, VALIDATION_PREFIX + name, "--", colour, f"{name}, held out")
        axis.set_ylabel("loss" if panel is losses else "quick evaluation")
        axis.legend(frameon=False, ncols=len(panel), loc="lower left", bbox_to_anchor=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
        axis.ticklabel_format(axis="y", useOffset=False)  # -1322 instead of -2 below "-1.32e3"
        if panel is not losses and 0 <= axis.dataLim.y0 <= axis.dataLim.y1 <= 1:
            axis.set_ylim(0, 1.02)
    axes[-1].set_xlabel("step")
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
