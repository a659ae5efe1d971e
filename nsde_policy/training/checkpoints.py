"""The loop around a training: progress bar, records of losses, checkpoints, interrupts that lose nothing."""

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from nsde_policy.config import TrainConfig
from nsde_policy.errors import CheckpointError
from nsde_policy.files import PARTIAL, find_difference
from nsde_policy.run_directory import ENCODER_FOLDER, SELECTION_FOLDER, RunDirectory
from nsde_policy.training.distributed import is_any_rank, is_distributed, is_first_rank
from nsde_policy.training.frames import PolicyWithEncoder
from nsde_policy.training.loop import Training, Validation

logger = logging.getLogger(__name__)

TIMED_STEPS = 2
"""Steps whose duration gives the first estimate; the step before them is slower."""
SAVE_PAUSE = 20
"""A checkpoint is saved at most every this many times the duration of the last save."""


@dataclass(frozen=True)
class TrainingProgress:
    """State of a training run at one record of the metrics."""

    step: int
    steps: int
    title: str
    """What is trained: "training" for the policy, "encoder" for its encoder."""
    seconds: float
    """Seconds since this process started training."""
    losses: Mapping[str, float]


Monitor = Callable[[TrainingProgress], object]
"""Callback for every record of the metrics."""


class Record(Protocol):
    """What a run directory says about its training."""

    @property
    def config(self) -> Any:
        """Settings of the training."""

    def same_training(self, other: Any) -> bool:
        """Return whether `other` can resume this training."""


def check_files(run: RunDirectory, *, resume: bool, has_encoder: bool = False) -> None:
    """Raise `CheckpointError` if a directory holds other files, or a run that is not to be resumed.

    Log that there is nothing to resume.
    """
    found = [file for file in run.path.iterdir() if file.suffix != PARTIAL] if run.path.exists() else []
    trained_first = {SELECTION_FOLDER} | ({ENCODER_FOLDER} if has_encoder else set())
    if not run.config.exists() and {file.name for file in found} - trained_first:
        raise CheckpointError(f"{run.path} holds files that are not a run; choose another --out")
    if found and not resume:
        raise CheckpointError(
            f"{run.path} already holds a run; continue with --resume or choose another --out"
        )
    if resume and not any(run.path.rglob(run.training.name)):
        logger.info("%s holds no checkpoint to resume: training starts from the beginning", run.path)


def refuse_other_training(path: Path, known: Record | None, wanted: Record) -> None:
    """Raise `CheckpointError` if a directory holds another training than the one to resume."""
    if known is not None and not known.same_training(wanted):
        raise build_refusal(path, known.config.to_dict(), wanted.config.to_dict())


def build_refusal(path: Path, found: object, wanted: object) -> CheckpointError:
    """Return the error about a directory that was trained with `found` settings instead of others."""
    change = find_difference(*(json.loads(json.dumps(each)) for each in (found, wanted))).removeprefix(
        "config."
    )
    return CheckpointError(
        f"{path} was trained with other settings, another seed or other demonstrations"
        f"{change and f' ({change})'}; resume with the same ones or choose another --out"
    )


class ProgressDisplay:
    """Progress bar on a terminal, otherwise about ten lines of the log; nothing unless the log shows INFO."""

    def __init__(self, training: Training, steps: int, title: str) -> None:
        self._training = training
        self._steps = steps
        self._title = title
        self._first = training.step
        self._logged: int | None = None
        self._started = 0.0
        is_shown = logger.isEnabledFor(logging.INFO)
        self._bar = tqdm(
            desc=title,
            initial=training.step,
            total=steps,
            unit="step",
            dynamic_ncols=True,
            disable=None if is_shown else True,  # None: without a terminal
        )

    def close(self) -> None:
        """Leave the bar on the terminal."""
        self._bar.close()

    def update(self) -> None:
        """Move the bar to the current step; without a bar, log an estimate once two steps are timed."""
        self._bar.update(self._training.step - self._bar.n)
        taken = self._training.step - self._first
        if taken == 1:
            self._started = time.monotonic()
        elif taken == 1 + TIMED_STEPS and self._bar.disable:
            more = self._steps - self._training.step
            left = tqdm.format_interval((time.monotonic() - self._started) / TIMED_STEPS * more)
            logger.info("%s: about %s for %d more steps", self._title, left, more)

    def show(self, seconds: float, losses: Mapping[str, float]) -> None:
        """Show the losses of a record, after a number of seconds."""
        step = self._training.step
        figures = ", ".join(f"{name} {loss:.3g}" for name, loss in losses.items()) or "nothing to fit"
        self._bar.set_postfix_str(figures, refresh=False)
        is_due = self._logged is None or step - self._logged >= self._steps / 10 or step == self._steps
        if self._bar.disable and is_due:
            self._logged = step
            left = tqdm.format_interval(seconds / (step - self._first) * (self._steps - step))
            where = f"{self._title} step {step}/{self._steps}"
            logger.info("%s, %.0f s, about %s left: %s", where, seconds, left, figures)


def train_loop(
    run: RunDirectory,
    training: Training,
    config: TrainConfig,
    monitor: Monitor | None,
    validation: Validation | None = None,
    *,
    title: str = "training",
    save_every_s: float = 15.0,
) -> None:
    """Train to the end, with records and checkpoints in a run directory and a progress bar.

    Raises:
        KeyboardInterrupt: After Ctrl-C, once the step is finished and a checkpoint saved. A second Ctrl-C
            does not wait: the steps since the last checkpoint are lost.
    """
    started = saved = time.monotonic()
    pause = save_every_s
    shown = ProgressDisplay(training, config.steps, title)
    with closing(shown), _defer_interrupt() as is_asked_to_stop, _save_at_exit(run, training):

        def is_stopped() -> bool:
            shown.update()
            return is_asked_to_stop() and not is_distributed()  # all ranks make the same steps

        def is_interrupted() -> bool:
            return is_any_rank(is_asked_to_stop())

        while training.step < config.steps:
            losses = training.advance(training.steps_to_record, is_stopped)
            is_cut_short = is_interrupted() and training.step < config.steps
            if validation is not None and not is_cut_short:
                losses = {**losses, **validation.losses()}
            seconds = time.monotonic() - started
            shown.show(seconds, losses)
            if monitor is not None and not is_cut_short and is_first_rank():
                monitor(TrainingProgress(training.step, config.steps, title, seconds, losses))
            run.append_metrics({"step": training.step, "seconds": round(seconds, 3), **losses})
            if is_interrupted():
                raise KeyboardInterrupt(
                    f"interrupted at step {training.step}; continue with the same command and --resume"
                )
            if time.monotonic() - saved >= pause and is_first_rank():
                saving = time.monotonic()
                _save_checkpoint(run, training)
                saved = time.monotonic()
                pause = max(save_every_s, SAVE_PAUSE * (saved - saving))  # gigabytes take seconds
    training.finish()


@contextmanager
def _save_at_exit(run: RunDirectory, training: Training) -> Iterator[None]:
    """Save a checkpoint when training ends, also on errors between steps, if the weights are finite."""
    try:
        yield
    finally:
        if not training.is_within_step and training.is_finite():
            _save_checkpoint(run, training)


@contextmanager
def _defer_interrupt() -> Iterator[Callable[[], bool]]:
    """Delay the first Ctrl-C to the end of a step, so that the checkpoint can be resumed bit for bit."""
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # the signal may have come while the log was written
            logger.info("interrupted: this step is finished and saved; press Ctrl-C again to end at once")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _save_checkpoint(run: RunDirectory, training: Training) -> None:
    """Write the checkpoint, and the averaged weights of the policy and of an encoder trained with it."""
    run.save_tensors(run.training, training.state())
    weights = training.averaged_weights()
    if isinstance(training.model, PolicyWithEncoder):
        weights, encoder = training.model.split_weights(weights)
        run.encoder.save_weights(encoder)
    run.save_weights(weights)
