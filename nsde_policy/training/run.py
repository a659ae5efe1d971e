"""Train a method on demonstrations into a run directory; runs can be interrupted and resumed."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nsde_policy.config import TrainConfig
from nsde_policy.data import Demonstrations, LazyFrames
from nsde_policy.data.first_action import NO_COLUMN, format_matches, match_changes
from nsde_policy.data.split import split_episodes
from nsde_policy.errors import CheckpointError
from nsde_policy.files import PARTIAL, replace_file
from nsde_policy.inference.calibration import CALIBRATION_FILE, Calibration, CameraRange
from nsde_policy.inference.loading import build_model, build_policy_spec
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, DemoRecord, RunDirectory, RunRecord
from nsde_policy.tasks import TASKS, get_task
from nsde_policy.training.dataset import (
    augment,
    build_states,
    build_training_data,
    describe_first_action,
    get_first_action,
    measure_demonstrations,
    resolve_first_action,
)
from nsde_policy.training.encoder import EncoderStage, describe_cameras
from nsde_policy.training.environment import add_environment
from nsde_policy.training.loop import Training
from nsde_policy.training.validation import Validation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingProgress:
    """State of a training run at one record of the metrics."""

    step: int
    steps: int
    seconds: float
    """Seconds since this process started training."""
    losses: Mapping[str, float]
    training: Training[Any] = field(repr=False)


Monitor = Callable[[TrainingProgress], Mapping[str, float] | None]
"""Callback for every record of the metrics; the numbers it returns are recorded beside the losses."""


def calibrate(demos: Demonstrations, record: RunRecord, frames: tuple[CameraRange, ...] = ()) -> Calibration:
    """Measure the calibration on the demonstrations, with mirror images as in training.

    It includes `frames`, the range of the frames of each camera.
    """
    config = record.config
    changes = match_changes(demos.without_codes(), config.demos.first_action_from or ())
    if described := format_matches(changes):
        logger.info(
            "actions that are changes per period: %s; a control session has to run at the rate of the policy",
            described.replace("=", "changes"),
        )
    demos = augment(demos, config, task=record.task)
    states = build_states(demos, **get_first_action(config.demos))
    rate_hz = demos.rate_hz or get_task(record.task).rate_hz or 0.0
    return Calibration.measure(
        build_policy_spec(record),
        states,
        demos.act,
        demos.episode_ends,
        rate_hz=rate_hz,
        action_limits=demos.act_limits,
        delta_columns=tuple(action for action, column in enumerate(changes) if column != NO_COLUMN),
        frames=frames,
    )


def train_run(
    demos: Demonstrations,
    config: RunConfig,
    path: Path,
    *,
    task: str,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int,
    device: str = "cpu",
    resume: bool = False,
    save_every_s: float = 15.0,
    monitor: Monitor | None = None,
    validation: float = 0.0,
    images: Mapping[str, LazyFrames] | None = None,
    encoder_monitor: Monitor | None = None,
) -> RunDirectory:
    """Train, or resume training, into a run directory.

    On CPU a resumed run gives bit-identical weights. An interrupt (Ctrl-C) saves a checkpoint first; a crash
    loses the steps since the last one. The fraction `validation` of the episodes is held out of training,
    statistics and calibration. With `images`, frames by camera, an encoder is trained first.

    Raises:
        CheckpointError: If `path` holds another run or other files, or another process is training into it.
        ConfigError: If the demonstrations do not fit the task's environment.
    """
    run = RunDirectory(path)
    demos = add_environment(demos, task, env_kwargs or {}, config.demos.obs_keys)
    with run.lock():
        _check_files(run, resume=resume)
        known, unseen, held_out = split_episodes(demos, validation, seed=seed)
        if images:
            stage = EncoderStage(
                demos, images, config, held_out, task=task, run=run, seed=seed, device=device
            )
            encoded = _run_encoder(stage, save_every_s, encoder_monitor, resume=resume)
            known, unseen, _ = split_episodes(encoded, validation, seed=seed)
        config = _resolve_settings(known, config, task)
        data = build_training_data(known, config, task=task)
        record = RunRecord(
            config=config,
            layout=measure_demonstrations(known, config, task=task),
            task=task,
            seed=seed,
            demos=_describe_demos(demos, held_out),
            plugins=find_plugins(config, task),
            env_kwargs=env_kwargs or {},
            cameras=describe_cameras(images or {}),
        )
        calibration = calibrate(known, record, stage.measure_frames() if images else ())
        training = _start_training(run, record, data, device, resume=resume)
        checked = Validation(unseen, record, training, device) if unseen else None
        _train_loop(run, training, config.train, save_every_s, monitor, checked)
        replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())
    return run


def _start_training(
    run: RunDirectory, record: RunRecord, data: Any, device: str, *, resume: bool
) -> Training[Any]:
    """Start a run and write its record, or restore its last checkpoint.

    Raises:
        CheckpointError: If the run in the directory has other settings than the one to resume.
    """
    _check_record(run, record)
    model = build_model(record)
    model.prepare(data)
    training = Training(model.to(device), data, record.config.train, seed=record.seed)
    if resume and run.training.exists():
        training.restore(run.read_training_state())
        run.truncate_metrics(training.step)
    else:
        run.save_record(record)
        run.truncate_metrics(-1)
    return training


def _run_encoder(
    stage: EncoderStage, save_every_s: float, monitor: Monitor | None, *, resume: bool
) -> Demonstrations:
    """Train the encoder of images, unless that was finished before, and return demonstrations of codes."""
    if not (resume and stage.is_finished()):
        training = stage.start(resume=resume)
        with _use_all_cores():
            _train_loop(stage.directory, training, stage.config.train, save_every_s, monitor, None)
            stage.finish()
    return stage.encode()


def _resolve_settings(demos: Demonstrations, config: RunConfig, task: str) -> RunConfig:
    """Return the settings with what they leave to the demonstrations, and log what was inferred."""
    if not (demos.rate_hz or get_task(task).rate_hz):
        logger.warning(
            "%s does not record its rate, which a control session needs: train with --rate HZ, or write it "
            "into the store with nsde-policy data set-rate %s HZ",
            demos.source,
            demos.source,
        )
    resolved = resolve_first_action(demos, config)
    if resolved != config:
        logger.info("action before the first one: %s", describe_first_action(resolved.demos))
    return resolved


def _describe_demos(demos: Demonstrations, held_out: tuple[int, ...]) -> DemoRecord:
    return DemoRecord(demos.source, demos.fingerprint, len(demos), len(demos.obs), held_out)


def find_plugins(config: RunConfig, task: str) -> dict[str, str]:
    """Name the distributions that provide a run's method and task, if they are not built in."""
    found = {"method": METHODS.package_of(config.method), "task": TASKS.package_of(task)}
    return {kind: package for kind, package in found.items() if package}


def _check_files(run: RunDirectory, *, resume: bool) -> None:
    """Raise `CheckpointError` if a directory holds other files, or a run that is not to be resumed."""
    found = [file for file in run.path.iterdir() if file.suffix != PARTIAL] if run.path.exists() else []
    if not run.config.exists() and any(file.name != ENCODER_FOLDER for file in found):
        raise CheckpointError(f"{run.path} holds files that are not a run; choose another --out")
    if found and not resume:
        raise CheckpointError(
            f"{run.path} already holds a run; continue with --resume or choose another --out"
        )


def _check_record(run: RunDirectory, record: RunRecord) -> None:
    """Raise `CheckpointError` if the run in a directory has other settings than the one to resume."""
    if not run.config.exists():
        return
    if not run.read_record().same_training(record):
        raise CheckpointError(
            f"{run.path} was trained with other settings, another seed or other demonstrations; "
            "resume with the same ones or choose another --out"
        )


def _train_loop(
    run: RunDirectory,
    training: Training[Any],
    config: TrainConfig,
    save_every_s: float,
    monitor: Monitor | None,
    validation: Validation | None,
) -> None:
    started = saved = time.monotonic()
    with _defer_interrupt() as is_interrupted, _save_at_exit(run, training):
        while training.step < config.steps:
            losses = training.advance(config.log_every)
            if validation is not None:
                losses = {**losses, **validation.losses()}
            progress = TrainingProgress(
                training.step, config.steps, time.monotonic() - started, losses, training
            )
            extra = monitor(progress) if monitor is not None else None
            run.append_metrics(
                {"step": training.step, "seconds": round(progress.seconds, 3), **losses, **(extra or {})}
            )
            if time.monotonic() - saved >= save_every_s:
                _save_checkpoint(run, training)
                saved = time.monotonic()
            if is_interrupted():
                raise KeyboardInterrupt(f"interrupted at step {training.step}; continue with --resume")
    training.finish()


@contextmanager
def _use_all_cores() -> Iterator[None]:
    """Let torch use all cores: convolutions gain from threads, the small networks of a policy do not."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _save_at_exit(run: RunDirectory, training: Training[Any]) -> Iterator[None]:
    """Save a checkpoint when training ends, also on errors, unless the weights are not finite."""
    try:
        yield
    finally:
        if training.is_finite():
            _save_checkpoint(run, training)


@contextmanager
def _defer_interrupt() -> Iterator[Callable[[], bool]]:
    """Delay Ctrl-C to the end of a step, so that the checkpoint can be resumed bit for bit."""
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _save_checkpoint(run: RunDirectory, training: Training[Any]) -> None:
    run.save_training(training.state())
    run.save_weights(training.averaged_weights())
