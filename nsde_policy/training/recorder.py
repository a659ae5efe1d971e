"""Fit a model into a run directory: progress, records of the losses, checkpoints, interrupts."""

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from nsde_policy.config import TrainConfig
from nsde_policy.core.targets import TensorRows
from nsde_policy.methods.base import TrainableModel
from nsde_policy.run_directory import RunDirectory

from .batches import BatchSource
from .checkpoints import Checkpoints
from .distributed import is_any_rank, is_distributed, is_first_rank
from .fit import FitState, Losses, Recorder, fit
from .interrupts import defer_interrupt
from .progress import ProgressBar

VALIDATION_PREFIX = "validation_"
"""Prefix of validation losses in the metrics."""
MAX_VALIDATION_ROWS, MAX_FRAME_ROWS, VALIDATION_BATCH = 4096, 256, 1024
"""Most rows of held-out data whose loss is computed at each record, of rows with frames, and per batch."""

Row = TypeVar("Row", covariant=True)


@dataclass(frozen=True)
class TrainingProgress:
    """State of a training run at one record of the metrics."""

    step: int
    steps: int
    title: str
    """What is trained: "training" for the policy, "encoder" for its encoder."""
    seconds: float
    """Seconds since this process started training."""
    losses: Losses


Monitor = Callable[[TrainingProgress], object]
"""Callback for every record of the metrics."""


@dataclass(frozen=True)
class FitOptions:
    """What all fits of a run have in common."""

    seed: int
    """Seed of batches and noise."""
    device: str = "cpu"
    resume: bool = False
    """Continue from a checkpoint if there is one."""
    monitor: Monitor | None = None
    """Called at every record of the losses."""
    save_every_s: float = 15.0
    """Seconds between checkpoints."""


class Rows(Protocol[Row]):
    """Data whose rows are indexed by a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Row: ...


def fit_run(
    run: RunDirectory,
    model: TrainableModel[Any],
    data: TensorRows | BatchSource[Any],
    config: TrainConfig,
    options: FitOptions,
    *,
    held_out: TensorRows | None = None,
    title: str = "training",
) -> None:
    """Fit a model, or continue its fit, with records and checkpoints in a run directory.

    The losses of `held_out` rows are recorded too. Progress calls the training by its `title`.

    Raises:
        KeyboardInterrupt: After Ctrl-C, once the step is finished and a checkpoint saved. A second Ctrl-C
            does not wait: the steps since the last checkpoint are lost.
    """
    checkpoint = run.read_tensors(run.training) if options.resume and run.training.exists() else None
    run.truncate_metrics(-1 if checkpoint is None else int(checkpoint["step"]))
    model.to(options.device)
    validation = None if held_out is None else Validation(held_out, model, seed=options.seed)
    recorder = RunRecorder(run, title, options.monitor, validation, Checkpoints(run, options.save_every_s))
    fit(model, data, config, seed=options.seed, checkpoint=checkpoint, recorder=recorder)


class RunRecorder(Recorder):
    """Writes what a fit does into a run directory, shows it, and ends it after Ctrl-C."""

    def __init__(
        self,
        run: RunDirectory,
        title: str,
        monitor: Monitor | None,
        validation: "Validation | None",
        checkpoints: Checkpoints,
    ) -> None:
        self._run = run
        self._title = title
        self._monitor = monitor
        self._validation = validation
        self._checkpoints = checkpoints

    @contextmanager
    def watch(self, state: FitState) -> Iterator[None]:
        """Show progress, delay Ctrl-C to the end of a step, and save a checkpoint at the end or on errors."""
        self._started = time.monotonic()
        self._bar = ProgressBar(self._title, state.step, state.config.steps)
        with closing(self._bar), defer_interrupt() as self._is_asked_to_stop:
            try:
                yield
            finally:
                if not state.is_within_step and state.is_finite():
                    self._checkpoints.save(state)

    def after_step(self, state: FitState) -> bool:
        """Move the progress bar; return whether Ctrl-C was pressed. Several ranks agree at records only."""
        self._bar.update(state.step)
        return self._is_asked_to_stop() and not is_distributed()

    def record(self, state: FitState, losses: Losses) -> None:
        """Show and write losses, save a checkpoint if one is due, or raise `KeyboardInterrupt`."""
        is_cut_short = self._is_interrupted() and state.step < state.config.steps
        if self._validation is not None and not is_cut_short:
            losses = {**losses, **self._validation.losses(state.averaged_weights())}
        seconds = time.monotonic() - self._started
        self._bar.show(state.step, seconds, losses)
        if self._monitor is not None and not is_cut_short and is_first_rank():
            self._monitor(TrainingProgress(state.step, state.config.steps, self._title, seconds, losses))
        self._run.append_metrics({"step": state.step, "seconds": round(seconds, 3), **losses})
        if self._is_interrupted():
            raise KeyboardInterrupt(
                f"interrupted at step {state.step}; continue with the same command and --resume"
            )
        if is_first_rank():
            self._checkpoints.save_if_due(state)

    def _is_interrupted(self) -> bool:
        """Return whether Ctrl-C was pressed in any rank; all of them have to ask."""
        return is_any_rank(self._is_asked_to_stop())


class Validation:
    """Losses of the averaged weights on held-out data.

    They are computed by a copy of the model in evaluation mode, so that training, its random numbers and its
    captured step are not touched. The noise in the losses is the same at every call.
    """

    def __init__(self, data: TensorRows, model: TrainableModel[Any], *, seed: int) -> None:
        self._seed = seed
        self._device = next(model.parameters(), torch.empty(0)).device
        self._data = data.to(self._device)
        self._model = copy.deepcopy(model).eval().requires_grad_(False)

    def losses(self, weights: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean of each loss over the held-out data; empty for methods that are not trained."""
        if self._model.objective() is None:
            return {}
        self._model.load_state_dict(weights)
        generator = torch.Generator(self._device).manual_seed(self._seed)
        sums: dict[str, float] = {}
        for rows in torch.split(torch.arange(len(self._data), device=self._device), VALIDATION_BATCH):
            for name, loss in self._model.loss(self._data[rows], generator).parts.items():
                sums[name] = sums.get(name, 0.0) + float(loss) * len(rows)
        return {VALIDATION_PREFIX + name: total / len(self._data) for name, total in sums.items()}


def sample_rows(data: Rows[Row], most: int, *, seed: int) -> Row:
    """Return up to `most` random rows, the same ones for the same seed."""
    return data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]]
