"""From demonstrations and settings to a finished run directory."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from nsde_policy.inference.calibration import FILE as CALIBRATION_FILE
from nsde_policy.inference.calibration import Calibration
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord, versions
from nsde_policy.config import NeuralSDEConfig, WindowConfig
from nsde_policy.data import (
    Demonstrations,
    PreviousAction,
    load_demonstrations,
    states_of,
    transitions,
    windows,
    with_mirror_images,
)
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import PARTIAL, replace_file
from nsde_policy.core.state import LayoutSpec
from nsde_policy.methods.registry import get_method
from nsde_policy.methods.base import AbstractPolicyModel
from nsde_policy.inference.spec import PolicySpec
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.core.targets import Transitions, Windows
from nsde_policy.tasks import get_task
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


Samples = Transitions | Windows
Watcher = Callable[[Progress], Mapping[str, float] | None]
"""Called at every record; what it returns is written beside the losses."""


def load_for(config: DemoConfig, path: Path) -> Demonstrations:
    """Load a store, or its first demonstrations, as the settings say."""
    demos = load_demonstrations(
        path, obs_keys=config.obs_keys, act_key=config.act_key, angles=config.angles or None
    )
    return demos.first(config.episodes) if config.episodes else demos


def training_data(demos: Demonstrations, config: RunConfig, *, task: str) -> Samples:
    """What the method learns from, as tensors: pairs of states, or windows; mirror images as configured."""
    demos = _with_mirror_images(demos, config, task=task)
    match config.model:
        case WindowConfig():
            return _windows(demos, config.demos, config.model, config.chunk)
        case NeuralSDEConfig():
            return _pairs(demos, config.demos, config.model)
    raise ConfigError(f"nothing says what {type(config.model).__name__} learns from")


def _pairs(demos: Demonstrations, settings: DemoConfig, model: NeuralSDEConfig) -> Transitions:
    pairs = transitions(
        demos,
        action=_action_rule(settings),
        history=model.history,
        final_actions=settings.final_action_weight > 0,
    )
    newest_first = np.concatenate([pairs.x[:, None], pairs.past[:, ::-1]], axis=1)
    final = ~pairs.known.all(axis=1, keepdims=True)
    weight = np.where(final, settings.final_action_weight, 1.0) * pairs.known
    return Transitions(
        x=torch.from_numpy(newest_first.reshape(len(pairs), -1)),
        x_next=torch.from_numpy(pairs.x_next.copy()),
        dt=torch.full((len(pairs), 1), model.dt),
        weight=torch.from_numpy(weight.astype(np.float32)),
    )


def _windows(demos: Demonstrations, settings: DemoConfig, model: WindowConfig, chunk: int) -> Windows:
    states, angles = states_of(demos, _action_rule(settings))
    cut = windows(
        replace(demos, obs=states, angles=angles, obs_names=()),
        horizon=model.horizon,
        n_obs_steps=model.history,
        n_action_steps=chunk,
    )
    return Windows(states=torch.from_numpy(cut.obs[:, ::-1].copy()), actions=torch.from_numpy(cut.act.copy()))


def fit_layout(demos: Demonstrations, config: RunConfig, *, task: str) -> LayoutSpec:
    """Measure ranges and increments on recorded pairs of states, mirror images included as in training."""
    demos = _with_mirror_images(demos, config, task=task)
    pairs = transitions(demos, action=_action_rule(config.demos))
    obs_dim, act_dim = demos.obs.shape[1], demos.act.shape[1]
    circular = demos.angles + tuple(obs_dim + column for column in demos.act_angles)
    x, x_next = torch.from_numpy(pairs.x.copy()), torch.from_numpy(pairs.x_next.copy())
    return LayoutSpec.fit(x, x_next, act_dim=act_dim, circular=circular)


def spec_of(record: RunRecord) -> PolicySpec:
    """The sizes of a run's policy."""
    config, layout = record.config, record.layout
    return PolicySpec(
        obs_dim=layout.obs_dim,
        act_dim=layout.act_dim,
        history=config.model.history,
        chunk=config.chunk,
        longest_chunk=config.model.longest_chunk or 0,
        first_action_from=config.demos.first_action_from,
        circular=layout.circular,
        low=layout.low,
        high=layout.high,
        increment_std=layout.increment_std,
        method=config.method,
    )


def calibrate(demos: Demonstrations, record: RunRecord) -> Calibration:
    """Measure what a control loop needs to know of the demonstrations, mirror images as in training."""
    config = record.config
    demos = _with_mirror_images(demos, config, task=record.task)
    states, _ = states_of(demos, _action_rule(config.demos))
    rate_hz = demos.rate_hz or get_task(record.task).rate_hz or 0.0
    return Calibration.measure(spec_of(record), states, demos.act, demos.episode_ends, rate_hz=rate_hz)


def _with_mirror_images(demos: Demonstrations, config: RunConfig, *, task: str) -> Demonstrations:
    if not config.demos.mirror:
        return demos
    mirror = get_task(task).mirror
    if mirror is None:
        raise ConfigError(f"the task {task!r} has no mirror symmetry; set demos.mirror to False")
    return with_mirror_images(demos, mirror)


def _action_rule(settings: DemoConfig) -> PreviousAction:
    return PreviousAction(first=settings.first_action_from or "zeros")


def build_model(record: RunRecord) -> AbstractPolicyModel[Any]:
    """The model of a run, with fresh weights drawn from its seed."""
    model = get_method(record.config.method).model_class()
    return model(record.config.model, record.layout, generator=torch.Generator().manual_seed(record.seed))


@contextmanager
def at_most_parameters(most: int) -> Iterator[None]:
    """Raise `RuntimeError` before this thread makes modules of more parameters than that, in numbers.

    Settings can name sizes that no memory holds; weights of such sizes would be in a file.
    """
    made, thread = 0, threading.get_ident()

    def count(module: object, name: str, parameter: object) -> None:
        nonlocal made
        if isinstance(parameter, torch.Tensor) and threading.get_ident() == thread:
            made += parameter.numel()
            if made > most:
                raise RuntimeError(f"its settings make more than {most} parameters")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def load_model(run: RunDirectory) -> tuple[RunRecord, AbstractPolicyModel[Any]]:
    """A trained model in evaluation mode, strictly: every weight there, of its shape, finite."""
    record, weights = run.record(), run.weights()
    try:
        with at_most_parameters(4 * sum(tensor.numel() for tensor in weights.values()) + 1000):
            model = build_model(record)
        model.make_room(weights)
        model.load_state_dict(weights)
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"{run.model} does not fit its config.json: {problem}") from None
    return record, model.eval()


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
    watch: Watcher | None = None,
) -> RunDirectory:
    """Train, or continue training, into a run directory; on CPU a continued run ends bit for bit alike.

    An interrupt (Ctrl-C) saves before it goes on; a crash loses what came after the last save.
    """
    run = RunDirectory(path)
    data = training_data(demos, config, task=task)
    record = RunRecord(
        config=config,
        layout=fit_layout(demos, config, task=task),
        task=task,
        seed=seed,
        demos=DemoRecord(demos.source, demos.fingerprint, len(demos), len(demos.obs)),
        versions=versions(),
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
    _work(run, training, config, save_every_s, watch)
    replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())
    return run


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
    watch: Watcher | None,
) -> None:
    started = saved = time.monotonic()
    with _deferred_interrupt() as interrupted, _saved_at_the_end(run, training):
        while training.step < config.train.steps:
            losses = training.advance(config.train.log_every)
            progress = Progress(
                training.step, config.train.steps, time.monotonic() - started, losses, training
            )
            extra = watch(progress) if watch is not None else None
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
