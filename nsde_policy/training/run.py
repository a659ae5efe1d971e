"""From demonstrations and settings to a finished run directory."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsde_policy.data import Demonstrations
from nsde_policy.errors import CheckpointError
from nsde_policy.files import PARTIAL, replace_file
from nsde_policy.inference.calibration import FILE as CALIBRATION_FILE
from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.loading import build_model, build_policy_spec
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord, versions
from nsde_policy.tasks import TASKS, get_task
from nsde_policy.training.dataset import augment, build_states, build_training_data, measure_demonstrations
from nsde_policy.training.loop import Training


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    step: int
    steps: int
    seconds: float
    """Since this process began to train."""
    losses: Mapping[str, float]
    training: Training[Any] = field(repr=False)


Monitor = Callable[[Progress], Mapping[str, float] | None]
"""Called at every record; what it returns is written beside the losses."""


def calibrate(demos: Demonstrations, record: RunRecord) -> Calibration:
    """Measure what a control loop needs to know of the demonstrations, mirror images as in training."""
    config = record.config
    demos = augment(demos, config, task=record.task)
    states = build_states(demos, config.demos.first_action_from)
    rate_hz = demos.rate_hz or get_task(record.task).rate_hz or 0.0
    return Calibration.measure(
        build_policy_spec(record), states, demos.act, demos.episode_ends, rate_hz=rate_hz
    )


def train_run(
    demos: Demonstrations,
    config: RunConfig,
    path: Path,
    *,
    task: str,
    seed: int,
    device: str = "cpu",
    resume: bool = False,
    save_every_s: float = 15.0,
    monitor: Monitor | None = None,
) -> RunDirectory:
    """Train, or continue training, into a run directory; on CPU a continued run ends bit for bit alike.

    An interrupt (Ctrl-C) saves before it goes on; a crash loses what came after the last save.
    """
    run = RunDirectory(path)
    data = build_training_data(demos, config, task=task)
    record = RunRecord(
        config=config,
        layout=measure_demonstrations(demos, config, task=task),
        task=task,
        seed=seed,
        demos=DemoRecord(demos.source, demos.fingerprint, len(demos), len(demos.obs)),
        versions=versions(),
        plugins=find_plugins(config, task),
    )
    _check_free(run, record, resume=resume)
    calibration = calibrate(demos, record)
    model = build_model(record)
    model.prepare(data)
    training = Training(model.to(device), data, config.train, seed=seed)
    if resume and run.training.exists():
        training.restore(run.training_state())
        run.keep_metrics_until(training.step)
    else:
        run.save_record(record)
        run.keep_metrics_until(-1)
    _work(run, training, config, save_every_s, monitor)
    replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())
    return run


def find_plugins(config: RunConfig, task: str) -> dict[str, str]:
    """Name the distributions that provide a run's method and task, if they are not built in."""
    found = {"method": METHODS.package_of(config.method), "task": TASKS.package_of(task)}
    return {kind: package for kind, package in found.items() if package}


def _check_free(run: RunDirectory, record: RunRecord, *, resume: bool) -> None:
    if not run.config.exists():
        if run.path.exists() and any(file.suffix != PARTIAL for file in run.path.iterdir()):
            raise CheckpointError(f"{run.path} holds something that is no run; choose another --out")
        return
    if not resume:
        raise CheckpointError(
            f"{run.path} holds a run already; continue it with --resume or choose another --out"
        )
    if not run.record().same_training(record):
        raise CheckpointError(
            f"{run.path} was trained with other settings, another seed or other demonstrations; "
            "resume with the same, or choose another --out"
        )


def _work(
    run: RunDirectory,
    training: Training[Any],
    config: RunConfig,
    save_every_s: float,
    monitor: Monitor | None,
) -> None:
    started = saved = time.monotonic()
    with _deferred_interrupt() as interrupted, _saved_at_the_end(run, training):
        while training.step < config.train.steps:
            losses = training.advance(config.train.log_every)
            progress = Progress(
                training.step, config.train.steps, time.monotonic() - started, losses, training
            )
            extra = monitor(progress) if monitor is not None else None
            run.append_metrics(
                {"step": training.step, "seconds": round(progress.seconds, 3), **losses, **(extra or {})}
            )
            if time.monotonic() - saved >= save_every_s:
                _save(run, training)
                saved = time.monotonic()
            if interrupted():
                raise KeyboardInterrupt(f"interrupted at step {training.step}; --resume goes on from there")
    training.finish()


@contextmanager
def _saved_at_the_end(run: RunDirectory, training: Training[Any]) -> Iterator[None]:
    """Save when the work ends, however it ends, unless what there is to save has gone bad."""
    try:
        yield
    finally:
        if training.is_finite():
            _save(run, training)


@contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C wait for the end of a step, so that what is saved can be continued bit for bit."""
    asked = False

    def note(*_: object) -> None:
        nonlocal asked
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread is told of signals
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _save(run: RunDirectory, training: Training[Any]) -> None:
    run.save_training(training.state())
    run.save_weights(training.averaged())
