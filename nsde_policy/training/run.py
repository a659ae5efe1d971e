"""Train a method on demonstrations into a run directory; runs can be interrupted and resumed."""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nsde_policy.config import ImageEncoderConfig, SelectionConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import TensorRows
from nsde_policy.data.action_columns import NO_COLUMN, describe_changes, match_changes
from nsde_policy.data.augmentation import Mirror, RigidMotions, add_mirror_images
from nsde_policy.data.split import split_episodes
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.base_model import VISIBILITY_FILE
from nsde_policy.errors import ConfigError
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import build_model, build_policy_spec, limit_parameters
from nsde_policy.inference.torch_threads import count_threads, use_threads
from nsde_policy.methods.base import TrainableModel
from nsde_policy.planner.calibration import CALIBRATION_FILE, Calibration
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord
from nsde_policy.training.checkpoints import Monitor, check_files, refuse_other_training, train_loop
from nsde_policy.training.dataset import (
    add_lost_cameras,
    build_states,
    build_training_data,
    describe_first_action,
    measure_demonstrations,
    resolve_first_action,
)
from nsde_policy.training.distributed import join_ranks
from nsde_policy.training.encoder import EncoderTraining
from nsde_policy.training.frames import FrameTable, PolicyWithEncoder
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
    """What a run records about its task, and the symmetries that it uses."""

    name: str = "none"
    env_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the environment that differ from those of the task."""
    mirror: Mirror | None = None
    """Mirror symmetry that doubles the demonstrations; None for no mirror images."""
    motions: RigidMotions | None = None
    """Rigid motions that align the ends of demonstrations; None to leave them as they are."""


TrainingData = tuple[TensorRows | FrameTable, TensorRows | None]
"""Training data, and rows for validation."""
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

    On CPU a resumed run gives bit-identical weights. Ctrl-C saves a checkpoint first. With `images`, frames
    by camera, an encoder is trained before the policy or with it. `monitor` gets every record of the losses.

    Raises:
        CheckpointError: If `path` holds another run or other files, or another process is training into it.
        ConfigError: If the method cannot train the encoder, or a model would have too many parameters.
    """
    from nsde_policy.training.selection import SelectionTraining

    run = RunDirectory(join_ranks(path, config.batch_sizes, device=options.device, resume=options.resume))
    selection = SelectionTraining(task.motions, options, monitor)
    check_std_scale(config, options.scale_std)
    known, unseen, held_out = split_episodes(demos, options.validation, seed=seed)
    encoder = None
    if images:
        encoder = EncoderTraining(
            demos, images, task.mirror, config, run, held_out=held_out, seed=seed, device=options.device
        )
    joint = encoder if encoder is not None and encoder.is_joint else None
    with run.lock():
        check_files(run, resume=options.resume, has_encoder=encoder is not None)
        if encoder is not None:
            teach = partial(train_run, demos, _unmask(config), seed=seed, task=task, images=images)
            encoded = _pretrain(encoder, teach, monitor, options)
            known, unseen, _ = split_episodes(encoded, options.validation, seed=seed)
        known, scaled_to, _ = split_episodes(known, options.scale_std, seed=seed, flag="--scale-std")
        config = _resolve_settings(known, config)
        used = selection.prepare(run, known, config, task.mirror, seed)
        config = config.replace_parts(selection={"select": selection.kind})  # what `auto` chose
        spec = measure_demonstrations(used, config, task.mirror, scale_features=joint is None)
        record = _build_record(config, spec, task, seed, demos, held_out, encoder)
        refuse_other_training(path, run.read_record() if run.config.exists() else None, record)
        model = _build_model(record, joint)  # before files are written: some methods cannot train an encoder
        if joint is not None:
            joint.check_settings(resume=options.resume)
        data = _prepare_data(record, used, unseen, task.mirror, joint)
        _fit(run, record, model, data, monitor, options)
        fit_std_scale(run, scaled_to, device=options.device)
        selection.finish(run, task.mirror)
        if joint is not None:
            known, _, _ = split_episodes(_encode_all(joint, run), options.validation, seed=seed)
        _write_calibration(run, calibrate(known, record, task.mirror), encoder)
    return run


def _unmask(config: RunConfig) -> RunConfig:
    """Return the settings of a run whose encoder is a teacher."""
    assert isinstance(config.encoder, ImageEncoderConfig)
    return replace(config, encoder=replace(config.encoder, masked_steps=0), selection=SelectionConfig())


def _write_calibration(run: RunDirectory, calibration: Calibration, encoder: EncoderTraining | None) -> None:
    """Write calibration.json, with the range of the camera frames if there are some."""
    if encoder is not None:
        file = run.encoder.path / VISIBILITY_FILE  # missing if an earlier version trained the encoder
        visible = float(run.encoder.read_tensors(file)["usual"]) if file.exists() else None
        calibration = replace(calibration, frames=encoder.measure_frames(), usually_visible=visible)
    replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())


def _encode_all(joint: EncoderTraining, run: RunDirectory) -> Demonstrations:
    """Return the demonstrations with features of an encoder that was trained with the policy."""
    joint.write_features(run.encoder)
    joint.close()
    return joint.read_features()


def _pretrain(
    encoder: EncoderTraining,
    teach: Callable[..., RunDirectory],
    monitor: Monitor | None,
    options: TrainOptions,
) -> Demonstrations:
    """Train the encoder of images, unless that was finished before; return demonstrations with features.

    An encoder that is trained together with the policy is not trained here; its features are 0. `teach`
    trains a policy with the encoder that is its teacher.
    """
    if encoder.is_joint:
        return encoder.make_blank_features()
    if encoder.needs_teacher:
        again = replace(options, resume=options.resume and encoder.teacher.path.exists())
        encoder.teacher = teach(path=encoder.teacher.path, monitor=monitor, options=again)
    encoder.check_settings(resume=options.resume)
    for phase in encoder.phases:
        if phase.is_finished():
            continue
        training, pause = encoder.start_phase(phase, resume=options.resume), options.save_every_s
        with use_threads(count_threads()):  # for convolutions
            train_loop(
                phase.directory, training, training.config, monitor, title=phase.title, save_every_s=pause
            )
            encoder.write_features(phase.directory, is_masked=phase.is_masked)
    encoder.close()
    return encoder.read_features()


def _prepare_data(
    record: RunRecord,
    known: Demonstrations,
    unseen: Demonstrations | None,
    mirror: Mirror | None,
    joint: EncoderTraining | None,
) -> TrainingData:
    """Build the training data of a run, and rows of unseen demonstrations for its validation."""

    def build(demos: Demonstrations, *, held_out: bool) -> TensorRows | FrameTable:
        if joint is not None:
            return joint.build_windows(demos, held_out=held_out)
        return build_training_data(demos, record.config, mirror)

    data = build(
        known if joint else add_lost_cameras(known, record.config.demos, record.spec), held_out=False
    )
    if unseen is None:
        return data, None
    logger.info("%d of %d episodes are held out for validation", len(unseen), record.demos.episodes)
    most = MAX_VALIDATION_ROWS if joint is None else MAX_FRAME_ROWS
    rows = choose_rows(build(replace(unseen, copies=()), held_out=True), most, seed=record.seed)
    return data, rows


def _build_model(record: RunRecord, joint: EncoderTraining | None) -> TrainableModel[Any]:
    """Build the model of a run, with its encoder if they are trained together."""
    with limit_parameters(error=ConfigError):
        policy = build_model(record)
    return policy if joint is None else joint.build_model(policy)


def _fit(
    run: RunDirectory,
    record: RunRecord,
    model: TrainableModel[Any],
    data: TrainingData,
    monitor: Monitor | None,
    options: TrainOptions,
) -> None:
    """Train a model, or resume its training, on training data and rows for validation."""
    device, config = options.device, record.config.train
    table, held_out = data
    source = None
    if isinstance(table, FrameTable):
        source = table.sample(config.batch_size, record.seed, torch.device(device))
    model.prepare(table.windows if isinstance(table, FrameTable) else table)
    training = Training(model.to(device), source or table, config, seed=record.seed)  # type: ignore[arg-type]
    if options.resume and run.training.exists():
        training.restore(run.read_tensors(run.training))
        run.truncate_metrics(training.step)
    else:
        run.save_record(record)
        run.truncate_metrics(-1)
    validation = None
    if held_out is not None:
        validation = Validation(held_out, training, seed=record.seed, device=device)
    is_large = isinstance(model, PolicyWithEncoder)  # convolutions gain from threads, small networks do not
    with (
        use_threads(count_threads()) if is_large else nullcontext(),
        nullcontext() if source is None else closing(source),
    ):
        train_loop(run, training, config, monitor, validation, save_every_s=options.save_every_s)


def calibrate(demos: Demonstrations, record: RunRecord, mirror: Mirror | None = None) -> Calibration:
    """Measure the calibration on the demonstrations, with mirror images as in training."""
    config = record.config
    changes = match_changes(demos.without_image_features(), config.demos.first_action_from or ())
    demos = add_mirror_images(demos, mirror)
    return Calibration.measure(
        build_policy_spec(record),
        build_states(demos, config.demos),
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
            "%s does not record its rate, which a control session needs: train with --rate HZ", demos.source
        )
    resolved = resolve_first_action(demos, config)
    if resolved != config:
        logger.info("action before the first one: %s", describe_first_action(resolved.demos))
        changes = match_changes(demos.without_image_features(), resolved.demos.first_action_from or ())
        if described := describe_changes(changes):
            logger.info(described)
    return resolved


def _build_record(
    config: RunConfig,
    spec: StateSpec,
    task: TrainedTask,
    seed: int,
    demos: Demonstrations,
    held_out: tuple[int, ...],
    encoder: EncoderTraining | None,
) -> RunRecord:
    """Return what a run records about itself."""
    ends, known = demos.episode_ends, demos.episode_fingerprints
    trained_on = DemoRecord(demos.source, demos.fingerprint, len(ends), int(ends[-1]), held_out, known)
    return RunRecord(
        config,
        spec,
        task.name,
        seed,
        trained_on,
        env_kwargs=task.env_kwargs,
        cameras=encoder.cameras if encoder else (),
    )
