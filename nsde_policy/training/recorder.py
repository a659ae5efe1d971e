"""What a fit writes into a run directory: losses and checkpoints; its progress, and Ctrl-C."""

import copy
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from nsde_policy.core.batches import TensorRows
from nsde_policy.methods.base import TrainableModel
from nsde_policy.run_directory import RunDirectory

from .distributed import is_any_rank, is_distributed, is_first_rank
from .fit import FitState, Recorder
from .frames import PolicyWithEncoder
from .options import Losses, TrainingProgress, TrainOptions

logger = logging.getLogger(__name__)

VALIDATION_PREFIX = "validation_"
"""Prefix of validation losses in the metrics."""
MAX_VALIDATION_ROWS, MAX_FRAME_ROWS, VALIDATION_BATCH = 4096, 256, 1024
"""Most rows of held-out data whose loss is computed at each record, of rows with frames, and per batch."""
SAVE_PAUSE = 20
"""A checkpoint is saved at most every this many times the duration of the last save, which may be seconds."""
LOGGED_FRACTION = 0.1
"""Without a terminal, the log shows the losses whenever this fraction of the steps is finished."""

Row = TypeVar("Row", covariant=True)


class RunRecorder(Recorder):
    """Writes losses and checkpoints of a fit into a run directory, shows progress, and resumes the fit.

    Progress is a bar on a terminal and otherwise lines of the log; there is none unless the log shows INFO.
    It calls the fit by its `title`. The losses of `held_out` rows are recorded too.

    After Ctrl-C, the step is finished and a checkpoint saved; then `KeyboardInterrupt` ends the fit. A second
    Ctrl-C does not wait: the steps since the last checkpoint are lost.
    """

    def __init__(
        self,
        run: RunDirectory,
        options: TrainOptions,
        *,
        title: str = "training",
        held_out: TensorRows | None = None,
    ) -> None:
        self._run = run
        self._options = options
        self._title = title
        self._held_out = held_out
        self._validation: Validation | None = None

    def load_checkpoint(self) -> Mapping[str, Tensor] | None:
        """Return the last checkpoint if the run is resumed, and delete records after it."""
        is_resumed = self._options.resume and self._run.training.exists()
        checkpoint = self._run.read_tensors(self._run.training) if is_resumed else None
        self._run.truncate_metrics(-1 if checkpoint is None else int(checkpoint["step"]))
        return checkpoint

    @contextmanager
    def watch(self, state: FitState) -> Iterator[None]:
        """Show progress, delay Ctrl-C to the end of a step, and save a checkpoint at the end."""
        if self._held_out is not None:
            self._validation = Validation(self._held_out, state.model, seed=self._options.seed)
        self._started = time.monotonic()
        self._first_step = state.step
        self._next_logged_step = 0.0
        self._next_save = self._started + self._options.save_every_s
        self._bar = tqdm(
            desc=self._title,
            initial=state.step,
            total=state.config.steps,
            unit="step",
            dynamic_ncols=True,
            disable=None if logger.isEnabledFor(logging.INFO) else True,  # None: without a terminal
        )
        with self._bar, defer_interrupt() as self._is_asked_to_stop:
            yield
            self._save(state)

    def after_step(self, state: FitState) -> bool:
        """Move the progress bar; return whether Ctrl-C was pressed. Several ranks agree at records only."""
        self._bar.update(state.step - self._bar.n)
        return self._is_asked_to_stop() and not is_distributed()

    def record(self, state: FitState, losses: Losses) -> None:
        """Show and write losses, save a checkpoint if one is due, and call the monitor.

        Raise `KeyboardInterrupt` if Ctrl-C was pressed in any rank.
        """
        is_interrupted = is_any_rank(self._is_asked_to_stop())
        if self._validation is not None and not is_interrupted:
            losses = {**losses, **self._validation.losses(state.averaged_weights())}
        seconds = time.monotonic() - self._started
        self._show(state, seconds, losses)
        self._run.append_metrics({"step": state.step, "seconds": round(seconds, 3), **losses})
        try:
            if is_interrupted:
                raise KeyboardInterrupt(
                    f"interrupted at step {state.step}; continue with the same command and --resume"
                )
            if is_first_rank() and self._options.monitor is not None:
                steps = state.config.steps
                self._options.monitor(TrainingProgress(state.step, steps, self._title, seconds, losses))
        except KeyboardInterrupt:  # also from the monitor
            self._save(state)
            raise
        if is_first_rank():
            self._save_if_due(state)

    def _show(self, state: FitState, seconds: float, losses: Losses) -> None:
        """Show the losses next to the bar, or without a bar in about ten lines of the log."""
        step, steps = state.step, state.config.steps
        figures = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items()) or "nothing to fit"
        self._bar.set_postfix_str(figures, refresh=False)
        if self._bar.disable and (step >= self._next_logged_step or step == steps):
            self._next_logged_step = step + LOGGED_FRACTION * steps
            left = tqdm.format_interval(seconds / (step - self._first_step) * (steps - step))
            where = f"{self._title} step {step}/{steps}"
            logger.info("%s, %.0f s, about %s left: %s", where, seconds, left, figures)

    def _save_if_due(self, state: FitState) -> None:
        """Save a checkpoint if the last one is old enough."""
        started = time.monotonic()
        if started >= self._next_save:
            self._save(state)
            ended = time.monotonic()
            self._next_save = ended + max(self._options.save_every_s, SAVE_PAUSE * (ended - started))

    def _save(self, state: FitState) -> None:
        """Write the checkpoint, and the averaged weights of the policy and of an encoder trained with it."""
        self._run.save_tensors(self._run.training, state.state())
        weights = state.averaged_weights()
        if isinstance(state.model, PolicyWithEncoder):
            weights, encoder = state.model.split_weights(weights)
            self._run.encoder.save_weights(encoder)
        self._run.save_weights(weights)


@contextmanager
def defer_interrupt() -> Iterator[Callable[[], bool]]:
    """Give a function that returns whether Ctrl-C was pressed; a second one raises `KeyboardInterrupt`."""
    is_interrupted = False

    def note(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # the signal may have come while the log was written
            logger.info("interrupted: this step is finished and saved; press Ctrl-C again to end at once")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)


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
        self._model.load_state_dict(weights)
        generator = torch.Generator(self._device).manual_seed(self._seed)
        sums: dict[str, float] = {}
        for rows in torch.split(torch.arange(len(self._data), device=self._device), VALIDATION_BATCH):
            for name, loss in self._model.loss(self._data[rows], generator).items():
                sums[name] = sums.get(name, 0.0) + float(loss) * len(rows)
        return {VALIDATION_PREFIX + name: total / len(self._data) for name, total in sums.items()}


class Rows(Protocol[Row]):
    """Data whose rows are indexed by a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> Row: ...


def sample_rows(data: Rows[Row], most: int, *, seed: int) -> Row:
    """Return up to `most` random rows, the same ones for the same seed."""
    return data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]]
