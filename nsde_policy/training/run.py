"""Train a method on demonstrations into a run directory; runs can be interrupted and resumed."""

import json
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsde_policy.core.spec import StateSpec
from nsde_policy.data.action_columns import NO_COLUMN, format_matches, match_changes
from nsde_policy.data.split import split_episodes
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.registry import get_encoder
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.loading import build_model, build_policy_spec, limit_parameters
from nsde_policy.inference.torch_threads import count_threads, use_threads
from nsde_policy.methods.base import TrainableModel
from nsde_policy.methods.registry import METHODS
from nsde_policy.planner.calibration import CALIBRATION_FILE, Calibration, CameraRange
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, DemoRecord, RunDirectory, RunRecord
from nsde_policy.tasks.registry import TASKS, get_task
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
from nsde_policy.training.encoder import EncoderStage, ImageTraining, describe_cameras
from nsde_policy.training.end_to_end import EndToEndModel, EndToEndStage
from nsde_policy.training.environment import add_environment
from nsde_policy.training.loop import MAX_FRAME_ROWS, MAX_VALIDATION_ROWS, Training, Validation, choose_rows
from nsde_policy.training.std_scale import check_std_scale, fit_std_scale

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)


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
    env_kwargs: Mapping[str, object] | None = None,
    seed: int,
    device: str = "cpu",
    resume: bool = False,
    save_every_s: float = 15.0,
    monitor: Monitor | None = None,
    validation: float = 0.0,
    scale_std: float = 0.0,
    images: Mapping[str, "LazyFrames"] | None = None,
    encoder_monitor: Monitor | None = None,
) -> RunDirectory:
    """Train, or resume training, into a run directory.

    On CPU a resumed run gives bit-identical weights. An interrupt (Ctrl-C) saves a checkpoint first; a crash
    loses the steps since the last one. The fraction `validation` of the episodes is held out of training,
    statistics and calibration; σ is scaled to the fraction `scale_std` of the others, which are held
    out of training as well. With `images`, frames by camera, an encoder is trained first, or jointly.

    Raises:
        CheckpointError: If `path` holds another run or other files, or another process is training into it.
        ConfigError: If the demonstrations do not fit the task's environment.
    """
    run = RunDirectory(path)
    check_std_scale(config, scale_std)
    demos = add_environment(demos, task, env_kwargs or {}, config.demos.obs_keys, config.chunk)
    known, unseen, held_out = split_episodes(demos, validation, seed=seed)
    stage = joint = None
    if images:
        stage = _make_stage(ImageTraining(demos, images, config, held_out, task, run, seed, device))
        joint = stage if isinstance(stage, EndToEndStage) else None
    with run.lock():
        _check_directory(run, config, task, seed, has_images=bool(images), resume=resume)
        if stage is not None:
            encoded = _run_encoder(stage, save_every_s, encoder_monitor, resume=resume)
            known, unseen, _ = split_episodes(encoded, validation, seed=seed)
        known, scaled_to, _ = split_episodes(known, scale_std, seed=seed, flag="--scale-std")
        config = _resolve_settings(known, config, task)
        layout = measure_demonstrations(known, config, task=task, scale_codes=joint is None)
        about = _describe_demos(demos, held_out)
        record = _build_record(config, layout, task, seed, about, env_kwargs or {}, images or {})
        model = _fit(run, record, known, unseen, joint, save_every_s, monitor, device=device, resume=resume)
        fit_std_scale(run, scaled_to, device=device)
        frames = stage.measure_frames() if stage is not None else ()
        if joint is not None:
            known, _, _ = split_episodes(joint.encode(model.encoder), validation, seed=seed)
        replace_file(run.path / CALIBRATION_FILE, calibrate(known, record, frames).to_json().encode())
    return run


class _TrainingData(NamedTuple):
    """Data that a run is trained on."""

    table: Any
    """All training data, which prepare the model."""
    source: Any
    """The data, or a source of their batches."""
    held_out: Any | None
    """Rows for validation."""


def _prepare_data(
    record: RunRecord, known: Demonstrations, unseen: Demonstrations | None, joint: EndToEndStage | None
) -> _TrainingData:
    """Build the training data of a run, and rows of unseen demonstrations for its validation."""
    config, task, seed = record.config, record.task, record.seed
    if unseen is not None:
        logger.info("%d of %d episodes are held out for validation", len(unseen), record.demos.episodes)
    rows: Any = None
    if joint is None:
        data = build_training_data(known, config, task=task)
        if unseen is not None:
            others = build_training_data(unseen, config, task=task)
            rows = choose_rows(others, MAX_VALIDATION_ROWS, seed=seed)
        return _TrainingData(data, data, rows)
    windows = joint.build_data(known)
    if unseen is not None:
        chosen = choose_rows(joint.build_data(unseen, held_out=True), MAX_FRAME_ROWS, seed=seed)
        rows = joint.load_frames(chosen)
    return _TrainingData(windows, joint.make_source(windows), rows)


def _fit(
    run: RunDirectory,
    record: RunRecord,
    known: Demonstrations,
    unseen: Demonstrations | None,
    joint: EndToEndStage | None,
    save_every_s: float,
    monitor: Monitor | None,
    *,
    device: str,
    resume: bool,
) -> Any:
    """Train a model on known demonstrations, or resume its training, and return it.

    Raises:
        CheckpointError: If the run in the directory has other settings than the one to resume.
        ConfigError: If the method cannot train the encoder, or the model would have too many parameters.
    """

    def build() -> Any:
        with limit_parameters(error=ConfigError):
            policy = build_model(record)
        return policy if joint is None else joint.build_model(policy)

    _check_record(run, record)
    model = build()  # before frames are decoded: some methods cannot train an encoder
    data = _prepare_data(record, known, unseen, joint)
    model.prepare(data.table)
    training = _start_training(run, record, model.to(device), data.source, resume=resume)
    checked = None
    if data.held_out is not None:
        checked = Validation(data.held_out, build(), training, seed=record.seed, device=device)
    is_large = isinstance(model, EndToEndModel)  # convolutions gain from threads, small networks do not
    with use_threads(count_threads()) if is_large else nullcontext():
        train_loop(run, training, record.config.train, save_every_s, monitor, checked)
    return model


def _start_training(
    run: RunDirectory, record: RunRecord, model: TrainableModel[Any], data: Any, *, resume: bool
) -> Training[Any]:
    """Start a run and write its record, or restore its last checkpoint."""
    training = Training(model, data, record.config.train, seed=record.seed)
    if resume and run.training.exists():
        training.restore(run.read_training_state())
        run.truncate_metrics(training.step)
    else:
        run.save_record(record)
        run.truncate_metrics(-1)
    return training


def _make_stage(given: ImageTraining) -> EncoderStage | EndToEndStage:
    """Build the encoder of images, to be trained before the policy or together with it."""
    has_own_stage = get_encoder(given.config.demos.encoder).has_own_stage
    return EncoderStage(given) if has_own_stage else EndToEndStage(given)


def _run_encoder(
    stage: EncoderStage | EndToEndStage, save_every_s: float, monitor: Monitor | None, *, resume: bool
) -> Demonstrations:
    """Train the encoder of images, unless that was finished before; return demonstrations with features.

    An encoder that is trained together with the policy is not trained here; its features are 0.
    """
    if isinstance(stage, EndToEndStage):
        return stage.add_blank_codes()
    if not (resume and stage.is_finished()):
        training = stage.start(resume=resume)
        with use_threads(count_threads()):  # for convolutions
            train_loop(stage.directory, training, stage.config.train, save_every_s, monitor, title="encoder")
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


def _build_record(
    config: RunConfig,
    spec: StateSpec,
    task: str,
    seed: int,
    demos: DemoRecord,
    env_kwargs: Mapping[str, object],
    images: Mapping[str, "LazyFrames"],
) -> RunRecord:
    """Return what a run records about itself, with the packages of plug-ins and the sizes of cameras."""
    plugins, cameras = find_plugins(config, task), describe_cameras(images)
    return RunRecord(config, spec, task, seed, demos, plugins=plugins, env_kwargs=env_kwargs, cameras=cameras)


def _describe_demos(demos: Demonstrations, held_out: tuple[int, ...]) -> DemoRecord:
    return DemoRecord(
        demos.source,
        demos.fingerprint,
        len(demos),
        len(demos.obs),
        held_out,
        demos.episode_fingerprints,
    )


def find_plugins(config: RunConfig, task: str) -> dict[str, str]:
    """Name the distributions that provide a run's method and task, if they are not built in."""
    found = {"method": METHODS.package_of(config.method), "task": TASKS.package_of(task)}
    return {kind: package for kind, package in found.items() if package}


def _check_directory(
    run: RunDirectory, config: RunConfig, task: str, seed: int, *, has_images: bool, resume: bool
) -> None:
    """Check what a directory holds; before an encoder is trained, record what it is trained for.

    Raises:
        CheckpointError: If it holds other files, a run that is not to be resumed, or an encoder that was
            begun for another training.
    """
    check_files(run, resume=resume)
    has_stage = has_images and get_encoder(config.demos.encoder).has_own_stage
    file = run.path / ENCODER_FOLDER / "request.json"
    if run.config.exists() or not (has_stage or file.exists()):
        return  # the record of the run is compared later
    request = json.loads(json.dumps({"config": config.to_dict(), "task": task, "seed": seed}))
    if file.exists() and (not has_stage or read_json(file, error=CheckpointError) != request):
        raise CheckpointError(
            f"{run.path} holds an encoder that was begun with other settings: resume with the same command "
            "and --resume, or choose another --out"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(request, indent=2).encode())


def _check_record(run: RunDirectory, record: RunRecord) -> None:
    """Raise `CheckpointError` if the run in a directory has other settings than the one to resume."""
    if not run.config.exists():
        return
    if not run.read_record().same_training(record):
        raise CheckpointError(
            f"{run.path} was trained with other settings, another seed or other demonstrations; "
            "resume with the same ones or choose another --out"
        )
