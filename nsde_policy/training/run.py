"""Train a method on demonstrations into a run directory; runs can be interrupted and resumed."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsde_policy.core.spec import StateSpec
from nsde_policy.data.action_columns import NO_COLUMN, format_matches, match_changes
from nsde_policy.data.augmentation import Mirror
from nsde_policy.data.split import split_episodes
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import build_model, build_policy_spec, limit_parameters
from nsde_policy.inference.torch_threads import count_threads, use_threads
from nsde_policy.methods.base import TrainableModel
from nsde_policy.methods.registry import METHODS
from nsde_policy.planner.calibration import CALIBRATION_FILE, Calibration
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord
from nsde_policy.training.batches import BatchSource, TensorData
from nsde_policy.training.checkpoints import Monitor, check_files, train_loop
from nsde_policy.training.dataset import (
    augment,
    build_states,
    build_training_data,
    describe_first_action,
    get_first_action,
    measure_demonstrations,
    resolve_first_action,
)
from nsde_policy.training.encoder import EncoderTraining, PolicyWithEncoder
from nsde_policy.training.frames import FrameData, load_frames
from nsde_policy.training.loop import MAX_FRAME_ROWS, MAX_VALIDATION_ROWS, Training, Validation, choose_rows
from nsde_policy.training.std_scale import check_std_scale, fit_std_scale

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainOptions:
    """How a run is trained: what is neither a setting of the policy nor part of its data."""

    device: str = "cpu"
    """Device name of torch; `train` also takes "auto"."""
    resume: bool = False
    """Continue from the last checkpoint."""
    save_every_s: float = 15.0
    """Seconds between checkpoints."""
    validation: float = 0.0
    """Fraction of the episodes that is held out; the losses on them are recorded."""
    scale_std: float = 0.0
    """Fraction of the other episodes that is held out, to scale σ to them after training."""


@dataclass(frozen=True)
class TrainedTask:
    """What a run records about its task, and the symmetry that it uses."""

    name: str = "none"
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment that differ from those of the task."""
    package: str | None = None
    """Distribution that provides the task, if it is not built in."""
    mirror: Mirror | None = None
    """Mirror symmetry that doubles the demonstrations; None for no mirror images."""


DEFAULT_OPTIONS = TrainOptions()
WITHOUT_TASK = TrainedTask()


def train_run(
    demos: Demonstrations,
    config: RunConfig,
    path: Path,
    *,
    seed: int,
    task: TrainedTask = WITHOUT_TASK,
    images: Mapping[str, "LazyFrames"] | None = None,
    monitor: Monitor | None = None,
    options: TrainOptions = DEFAULT_OPTIONS,
) -> RunDirectory:
    """Train, or resume training, into a run directory.

    On CPU a resumed run gives bit-identical weights. An interrupt (Ctrl-C) saves a checkpoint first; a crash
    loses the steps since the last one. With `images`, frames by camera, an encoder is trained first, or
    together with the policy. `monitor` is called at every record of the losses.

    Raises:
        CheckpointError: If `path` holds another run or other files, or another process is training into it.
        ConfigError: If the method cannot train the encoder, or a model would have too many parameters.
    """
    run = RunDirectory(path)
    check_std_scale(config, options.scale_std)
    known, unseen, held_out = split_episodes(demos, options.validation, seed=seed)
    encoder = joint = None
    if images:
        data = FrameData(demos, images, task.mirror, held_out, run.encoder.path)
        encoder = EncoderTraining(data, config, run, seed=seed, device=options.device)
        joint = encoder if encoder.is_joint else None
    with run.lock():
        check_files(run, resume=options.resume, has_encoder=encoder is not None)
        if encoder is not None:
            encoded = _pretrain(encoder, run, monitor, options)
            known, unseen, _ = split_episodes(encoded, options.validation, seed=seed)
        known, scaled_to, _ = split_episodes(known, options.scale_std, seed=seed, flag="--scale-std")
        config = _resolve_settings(known, config)
        spec = measure_demonstrations(known, config, task.mirror, scale_features=joint is None)
        record = _build_record(config, spec, task, seed, _describe_demos(demos, held_out))
        if encoder is not None:
            record = replace(record, cameras=encoder.data.cameras)
        _check_record(run, record)
        model = _build_model(record, joint)  # before files are written: some methods cannot train an encoder
        if joint is not None:
            joint.check_settings(resume=options.resume)
        _fit(run, record, model, _prepare_data(record, known, unseen, task.mirror, joint), monitor, options)
        fit_std_scale(run, scaled_to, device=options.device)
        if joint is not None:
            joint.write_features()
            known, _, _ = split_episodes(joint.read_features(), options.validation, seed=seed)
        calibration = calibrate(known, record, task.mirror)
        if encoder is not None:
            calibration = replace(calibration, frames=encoder.measure_frames())
        replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())
    return run


def _pretrain(
    encoder: EncoderTraining, run: RunDirectory, monitor: Monitor | None, options: TrainOptions
) -> Demonstrations:
    """Train the encoder of images, unless that was finished before; return demonstrations with features.

    An encoder that is trained together with the policy is not trained here; its features are 0.
    """
    if encoder.is_joint:
        return encoder.make_blank_features()
    encoder.check_settings(resume=options.resume)
    if not (options.resume and encoder.is_pretrained()):
        training = encoder.start_pretraining(resume=options.resume)
        with use_threads(count_threads()):  # for convolutions
            train_loop(run.encoder, training, training.config, options.save_every_s, monitor, title="encoder")
            encoder.write_features()
    return encoder.read_features()


class _TrainingData(NamedTuple):
    """Data that a run is trained on."""

    table: TensorData
    """All training data, which prepare the model."""
    source: TensorData | BatchSource[Any]
    """The data, or a source of their batches."""
    held_out: TensorData | None
    """Rows for validation."""


def _prepare_data(
    record: RunRecord,
    known: Demonstrations,
    unseen: Demonstrations | None,
    mirror: Mirror | None,
    joint: EncoderTraining | None,
) -> _TrainingData:
    """Build the training data of a run, and rows of unseen demonstrations for its validation."""
    config, seed = record.config, record.seed
    held_out: TensorData | None = None
    if unseen is not None:
        logger.info("%d of %d episodes are held out for validation", len(unseen), record.demos.episodes)
    if joint is None:
        data = build_training_data(known, config, mirror)
        if unseen is not None:
            held_out = choose_rows(
                build_training_data(unseen, config, mirror), MAX_VALIDATION_ROWS, seed=seed
            )
        return _TrainingData(data, data, held_out)
    windows = joint.build_windows(known)
    if unseen is not None:
        chosen = choose_rows(joint.build_windows(unseen, held_out=True), MAX_FRAME_ROWS, seed=seed)
        held_out = load_frames(chosen, joint.frames)
    return _TrainingData(windows, joint.make_source(windows), held_out)


def _build_model(record: RunRecord, joint: EncoderTraining | None) -> TrainableModel[Any]:
    """Build the model of a run, with its encoder if they are trained together."""
    with limit_parameters(error=ConfigError):
        policy = build_model(record)
    return policy if joint is None else joint.build_model(policy)


def _fit(
    run: RunDirectory,
    record: RunRecord,
    model: TrainableModel[Any],
    data: _TrainingData,
    monitor: Monitor | None,
    options: TrainOptions,
) -> None:
    """Train a model, or resume its training."""
    device, config = options.device, record.config.train
    model.prepare(data.table)
    training = Training(model.to(device), data.source, config, seed=record.seed)
    if options.resume and run.training.exists():
        training.restore(run.read_training_state())
        run.truncate_metrics(training.step)
    else:
        run.save_record(record)
        run.truncate_metrics(-1)
    validation = None
    if data.held_out is not None:
        validation = Validation(data.held_out, training, seed=record.seed, device=device)
    is_large = isinstance(model, PolicyWithEncoder)  # convolutions gain from threads, small networks do not
    with use_threads(count_threads()) if is_large else nullcontext():
        train_loop(run, training, config, options.save_every_s, monitor, validation)


def calibrate(demos: Demonstrations, record: RunRecord, mirror: Mirror | None = None) -> Calibration:
    """Measure the calibration on the demonstrations, with mirror images as in training."""
    config = record.config
    changes = match_changes(demos.without_image_features(), config.demos.first_action_from or ())
    if described := format_matches(changes):
        logger.info(
            "actions that are changes per period: %s; a control session has to run at the rate of the policy",
            described.replace("=", "changes"),
        )
    demos = augment(demos, mirror)
    return Calibration.measure(
        build_policy_spec(record),
        build_states(demos, **get_first_action(config.demos)),
        demos.act,
        demos.episode_ends,
        rate_hz=demos.rate_hz or 0.0,
        action_limits=demos.act_limits,
        delta_columns=tuple(action for action, column in enumerate(changes) if column != NO_COLUMN),
    )


def _resolve_settings(demos: Demonstrations, config: RunConfig) -> RunConfig:
    """Return the settings with what they leave to the demonstrations, and log what was inferred."""
    if not demos.rate_hz:
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


def _build_record(
    config: RunConfig, spec: StateSpec, task: TrainedTask, seed: int, demos: DemoRecord
) -> RunRecord:
    """Return what a run records about itself, with the packages of plug-ins."""
    found = {"method": METHODS.package_of(config.method), "task": task.package}
    plugins = {kind: package for kind, package in found.items() if package}
    return RunRecord(config, spec, task.name, seed, demos, plugins=plugins, env_kwargs=task.env_kwargs)


def _describe_demos(demos: Demonstrations, held_out: tuple[int, ...]) -> DemoRecord:
    return DemoRecord(
        demos.source,
        demos.fingerprint,
        len(demos),
        len(demos.obs),
        held_out,
        demos.episode_fingerprints,
    )


def _check_record(run: RunDirectory, record: RunRecord) -> None:
    """Raise `CheckpointError` if the run in a directory has other settings than the one to resume."""
    if run.config.exists() and not run.read_record().same_training(record):
        raise CheckpointError(
            f"{run.path} was trained with other settings, another seed or other demonstrations; "
            "resume with the same ones or choose another --out"
        )
