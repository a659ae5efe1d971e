"""Training as a user sees it: a progress bar, quick evaluations, a plot at the end."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from tqdm import tqdm

from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.errors import ConfigError, MissingDependencyError
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.dataset import load_for
from nsde_policy.training.run import Progress, train_run

Evaluate = Callable[[Path], Mapping[str, float]]
"""Scores of the policy in a run directory, by name."""


def train(
    demos: Path | None,
    config: RunConfig,
    path: Path,
    *,
    task: str,
    seed: int,
    device: str,
    resume: bool = False,
    eval_every: int = 0,
    evaluate: Evaluate | None = None,
    tensorboard: bool = False,
) -> RunDirectory:
    """Train on a store, or on the embedded demonstrations, into a run directory, with a progress bar.

    Args:
        demos: Store of demonstrations; None for those embedded in the package.
        config: Settings of the run.
        path: Run directory.
        task: Name of the task.
        seed: Fixes weights, batches and noise.
        device: Device name of torch, or "auto".
        resume: Continue the run where it was saved last.
        eval_every: Steps between calls of `evaluate`; 0 for none.
        evaluate: Scores the run so far; its figures are logged beside the losses.
        tensorboard: Write the losses for TensorBoard too.
    """
    episodes = load_for(config.demos, demos or EMBEDDED_DEMOS)
    where = pick_device(device)
    if where == "cpu" and not config.model.gains_from_threads:
        torch.set_num_threads(1)
    quick = evaluate if eval_every else None
    with ProgressMonitor(RunDirectory(path), config.train.steps, eval_every, quick, tensorboard) as monitor:
        return train_run(
            episodes, config, path, task=task, seed=seed, device=where, resume=resume, monitor=monitor
        )


def pick_device(name: str) -> str:
    """A device torch can use, or a clear refusal."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from None
    return name


class ProgressMonitor:
    """Progress bar, quick evaluations and TensorBoard output of a training run."""

    def __init__(
        self, run: RunDirectory, steps: int, eval_every: int, evaluate: Evaluate | None, tensorboard: bool
    ) -> None:
        self._run, self._steps, self._evaluate, self._eval_every = run, steps, evaluate, eval_every
        self._board = _summary_writer(run.path) if tensorboard else None
        self._bar: tqdm[None] | None = None
        self._evaluated = self._logged = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()

    def __call__(self, progress: Progress) -> Mapping[str, float]:
        """Move the bar; now and then, play a few episodes."""
        self._show(progress)
        extra: dict[str, float] = {}
        if self._evaluate is not None and progress.step - self._evaluated >= self._eval_every:
            self._evaluated = progress.step
            self._run.save_weights(progress.training.averaged())
            extra = dict(self._evaluate(self._run.path))
            figures = ", ".join(f"{name} {value:.3f}" for name, value in extra.items())
            tqdm.write(f"step {progress.step}: {figures}", file=sys.stderr)
        if self._board is not None:
            for name, value in {**progress.losses, **extra}.items():
                self._board.add_scalar(name, value, progress.step)
        return extra

    def _show(self, progress: Progress) -> None:
        """A bar on a terminal; in a log, a line now and then."""
        losses = {name: f"{loss:.3g}" for name, loss in progress.losses.items()}
        if sys.stderr.isatty():
            if self._bar is None:  # only now: a resumed run has steps behind it already
                self._bar = tqdm(
                    total=self._steps, initial=progress.step, unit="step", desc="training", dynamic_ncols=True
                )
            self._bar.set_postfix(losses, refresh=False)
            self._bar.update(progress.step - self._bar.n)
        elif progress.step - self._logged >= self._steps / 10 or progress.step == self._steps:
            self._logged = progress.step
            parts = ", ".join(f"{name} {loss}" for name, loss in losses.items()) or "nothing to fit"
            print(f"step {progress.step}/{self._steps}, {progress.seconds:.0f} s: {parts}", file=sys.stderr)


def _summary_writer(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependencyError.extra("tensorboard", "tensorboard") from None
    return SummaryWriter(str(path))


def plot_training(run: RunDirectory) -> Path | None:
    """Draw losses and quick scores over the steps; None without matplotlib, or where nothing was trained."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    records = list(run.read_metrics())
    names = [name for name in records[0] if name not in ("step", "seconds", "reward", "success")]
    if not names:
        return None
    scored = [r for r in records if "success" in r]
    figure = Figure(figsize=(8, 3.2 + 2.2 * bool(scored)), layout="constrained")
    axes = figure.subplots(1 + bool(scored), 1, sharex=True, squeeze=False)[:, 0]
    steps = [r["step"] for r in records]
    for name, colour in zip(names, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False):
        axes[0].plot(steps, [r[name] for r in records], lw=0.8, color=colour, label=name)
    axes[0].set_ylabel("loss")
    axes[0].legend(frameon=False, ncols=len(names))
    if scored:
        for name, colour in (("reward", "#0072b2"), ("success", "#d55e00")):
            axes[1].plot(
                [r["step"] for r in scored], [r[name] for r in scored], "o-", color=colour, label=name
            )
        axes[1].set_ylim(0, 1.02)
        axes[1].set_ylabel("quick evaluation")
        axes[1].legend(frameon=False, ncols=2)
    axes[-1].set_xlabel("step")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    path = run.path / "training.png"
    figure.savefig(path, dpi=130)
    return path
