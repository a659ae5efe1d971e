"""Checkpoints of a training in its run directory, and whether a directory may be trained into."""

import json
import logging
import time
from pathlib import Path
from typing import Any, Protocol

from nsde_policy.errors import CheckpointError
from nsde_policy.files import PARTIAL, find_difference
from nsde_policy.run_directory import ENCODER_FOLDER, SELECTION_FOLDER, RunDirectory

from .fit import FitState
from .frames import PolicyWithEncoder

logger = logging.getLogger(__name__)

SAVE_PAUSE = 20
"""A checkpoint is saved at most every this many times the duration of the last save, which may be seconds."""


class Record(Protocol):
    """What a run directory says about its training."""

    @property
    def config(self) -> Any:
        """Settings of the training."""

    def same_training(self, other: Any) -> bool:
        """Return whether `other` can resume this training."""


class Checkpoints:
    """Saves a training into a run directory, at most every `pause_s` seconds."""

    def __init__(self, run: RunDirectory, pause_s: float) -> None:
        self._run = run
        self._pause_s = self._next_pause_s = pause_s
        self._saved = time.monotonic()

    def save_if_due(self, state: FitState) -> None:
        """Save a checkpoint if the last one is old enough."""
        if time.monotonic() - self._saved >= self._next_pause_s:
            started = time.monotonic()
            self.save(state)
            self._saved = time.monotonic()
            self._next_pause_s = max(self._pause_s, SAVE_PAUSE * (self._saved - started))

    def save(self, state: FitState) -> None:
        """Write the checkpoint, and the averaged weights of the policy and of an encoder trained with it."""
        self._run.save_tensors(self._run.training, state.state())
        weights = state.averaged_weights()
        if isinstance(state.model, PolicyWithEncoder):
            weights, encoder = state.model.split_weights(weights)
            self._run.encoder.save_weights(encoder)
        self._run.save_weights(weights)


def check_files(run: RunDirectory, *, resume: bool, has_encoder: bool = False) -> None:
    """Raise `CheckpointError` if a directory holds other files, or a run that is not to be resumed.

    Log that there is nothing to resume.
    """
    files = [file for file in run.path.iterdir() if file.suffix != PARTIAL] if run.path.exists() else []
    trained_first = {SELECTION_FOLDER} | ({ENCODER_FOLDER} if has_encoder else set())
    if not run.config.exists() and {file.name for file in files} - trained_first:
        raise CheckpointError(f"{run.path} holds files that are not a run; choose another --out")
    if files and not resume:
        raise CheckpointError(
            f"{run.path} already holds a run; continue with --resume or choose another --out"
        )
    if resume and not any(run.path.rglob(run.training.name)):
        logger.info("%s holds no checkpoint to resume: training starts from the beginning", run.path)


def refuse_other_training(path: Path, recorded: Record | None, record: Record) -> None:
    """Raise `CheckpointError` if a directory holds another training than the one to resume."""
    if recorded is not None and not recorded.same_training(record):
        raise build_refusal(path, recorded.config.to_dict(), record.config.to_dict())


def build_refusal(path: Path, recorded: object, settings: object) -> CheckpointError:
    """Return the error about a directory that was trained with `recorded` settings instead of others."""
    both = (json.loads(json.dumps(value)) for value in (recorded, settings))
    change = find_difference(*both).removeprefix("config.")
    return CheckpointError(
        f"{path} was trained with other settings, another seed or other demonstrations"
        f"{change and f' ({change})'}; resume with the same ones or choose another --out"
    )
