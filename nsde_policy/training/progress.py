"""Training with quick evaluations and a plot of the losses."""

import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from nsde_policy.assets import find_demos
from nsde_policy.errors import ConfigError, import_optional
from nsde_policy.files import replace_file
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task
from nsde_policy.training.checkpoints import TrainingProgress, save_weights
from nsde_policy.training.demos import load_training_demos, open_training_images, report_store
from nsde_policy.training.display import format_figures
from nsde_policy.training.loop import VALIDATION_PREFIX
from nsde_policy.training.run import train_run
from nsde_policy.training.std_scale import check_std_scale

logger = logging.getLogger(__name__)

QuickEvaluation = Callable[[Path], Mapping[str, float]]
"""Returns scores of the policy in a run directory, by name."""
QUICK_SCORES = ("reward", "success")
"""Scores of a quick evaluation that are plotted."""


def train(
    demos: Path | None,
    config: RunConfig,
    path: Path,
    *,
    task: str,
    env_kwargs: Mapping[str, object] | None = None,
    seed: int,
    device: str,
    resume: bool = False,
    eval_every: int = 0,
    evaluate: QuickEvaluation | None = None,
    tensorboard: bool = False,
    validation: float = 0.0,
    scale_std: float = 0.0,
) -> RunDirectory:
    """Train into a run directory with a progress bar.

    Args:
        demos: Demonstrations; None for those of the task that are embedded in the package.
        config: Settings of the run.
        path: Run directory.
        task: Name of the task, or its environment, see `get_task`.
        env_kwargs: Keyword arguments of the environment, recorded in the run.
        seed: Seed of weights, batches and noise.
        device: Device name of torch, or "auto".
        resume: Continue from the last checkpoint.
        eval_every: Steps between calls of `evaluate`, of which one is at the end; 0 for none.
        evaluate: Scores a run directory; the scores are logged with the losses.
        tensorboard: Write the losses for TensorBoard too.
        validation: Fraction of the episodes that is held out; the losses on them are recorded.
        scale_std: Fraction of the other episodes that is held out, to scale σ to them after training.
    """
    check_std_scale(config, scale_std)
    demos = demos or find_demos(get_task(task).name)
    episodes = load_training_demos(config.demos, demos, task=task)
    report_store(episodes, config.demos, demos)
    quick = evaluate if eval_every else None
    with ProgressMonitor(RunDirectory(path), config.train.steps, eval_every, quick, tensorboard) as monitor:
        return train_run(
            episodes,
            config,
            path,
            task=task,
            env_kwargs=env_kwargs,
            seed=seed,
            device=_prepare_device(device, config),
            resume=resume,
            monitor=monitor,
            validation=validation,
            scale_std=scale_std,
            images=open_training_images(config.demos, demos),
        )


def _prepare_device(name: str, config: RunConfig) -> str:
    """Return the device to train on; small networks are trained on one CPU thread."""
    device = pick_device(name)
    if device == "cpu" and not config.model.gains_from_threads:
        torch.set_num_threads(1)
    return device


def pick_device(name: str) -> str:
    """Return a device name that torch can use; "auto" prefers a GPU.

    Raises:
        ConfigError: If torch cannot use the device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name).tolist()
    except Exception as error:  # of several types, by the backend that is missing
        reason = str(error).splitlines()[0][:100]
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from None
    return "cpu" if torch.device(name).type == "cpu" else name


class ProgressMonitor:
    """Quick evaluations and TensorBoard output of a training run."""

    def __init__(
        self,
        run: RunDirectory,
        steps: int,
        eval_every: int = 0,
        evaluate: QuickEvaluation | None = None,
        tensorboard: bool = False,
    ) -> None:
        self._run, self._steps, self._evaluate, self._eval_every = run, steps, evaluate, eval_every
        self._board = _open_tensorboard(run.path) if tensorboard else None
        self._evaluated: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._board is not None:
            self._board.close()

    def __call__(self, progress: TrainingProgress) -> Mapping[str, float]:
        """Evaluate every `eval_every` steps and at the end, and return the scores."""
        scores: dict[str, float] = {}
        if self._evaluate is not None and self._is_due(progress.step):
            save_weights(self._run, progress.training)
            scores = dict(self._evaluate(self._run.path))
            logger.info("step %d: %s", progress.step, format_figures(scores, ".3f"))
        if self._board is not None:
            for name, value in {**progress.losses, **scores}.items():
                self._board.add_scalar(name, value, progress.step)
        return scores

    def _is_due(self, step: int) -> bool:
        """Return whether this record is the first at or after a multiple of `eval_every`, or the last."""
        if self._evaluated is None:  # a resumed run has scores already
            scored = [line["step"] for line in self._run.read_metrics() if line.keys() & {*QUICK_SCORES}]
            self._evaluated = max(scored, default=0)
        due = step // self._eval_every > self._evaluated // self._eval_every or step == self._steps
        self._evaluated = step if due else self._evaluated
        return due


def _open_tensorboard(path: Path) -> Any:
    import_optional("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path))


def _plot_curve(axis: Any, records: list[dict[str, Any]], name: str, line: str, **style: Any) -> None:
    """Draw a figure of the metrics over the steps, if it was recorded."""
    points = [(record["step"], record[name]) for record in records if name in record]
    if points:
        dot = {"marker": "o"} if len(points) == 1 else {}  # a line of one point is invisible
        axis.plot(*zip(*points, strict=True), line, **style, **dot)


def _group_scores(records: list[dict[str, Any]]) -> list[list[str]]:
    """Group the scores of quick evaluations by panel: shares in one, any other with a scale of its own."""
    values = {name: [record[name] for record in records if name in record] for name in QUICK_SCORES}
    recorded = [name for name in QUICK_SCORES if values[name]]
    shares = [name for name in recorded if all(0 <= value <= 1 for value in values[name])]
    return [[name] for name in recorded if name not in shares] + ([shares] if shares else [])


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
    if not records:
        return None
    hidden = ("step", "seconds", *QUICK_SCORES)
    losses = [n for n in records[0] if n not in hidden and not n.startswith(VALIDATION_PREFIX)]
    if not losses:
        return None
    panels = [(losses, "loss", "-", 0.8)]
    panels += [(names, "quick evaluation", "o-", 1.5) for names in _group_scores(records)]
    figure = Figure(figsize=(8, 1.0 + 2.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (names, label, line, width) in zip(axes, panels, strict=True):
        for name, colour in zip(names, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False):
            _plot_curve(axis, records, name, line, lw=width, color=colour, label=name)
            held_out = VALIDATION_PREFIX + name
            _plot_curve(axis, records, held_out, "--", lw=1.3, color=colour, label=f"{name}, held out")
        axis.set_ylabel(label)
        axis.legend(frameon=False, ncols=len(names), loc="lower left", bbox_to_anchor=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
        axis.ticklabel_format(axis="y", useOffset=False)  # -1322 instead of -2 below "-1.32e3"
        if names is not losses and 0 <= axis.dataLim.y0 <= axis.dataLim.y1 <= 1:
            axis.set_ylim(0, 1.02)
    axes[-1].set_xlabel("step")
    path, picture = run.path / "training.png", io.BytesIO()
    figure.savefig(picture, dpi=130)
    replace_file(path, picture.getvalue())
    return path
