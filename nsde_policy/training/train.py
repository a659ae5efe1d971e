"""Train a policy on demonstrations into a run directory; a run can be interrupted and resumed.

From a call to the first gradient, each function calls the next one:

    train, or `Train.train` of the command line   takes what a user asks for
    train_into_run_folder                         finds task and settings, and names the folder
    train_run                                     loads the demonstrations, splits them, trains an encoder
    _train_policy                                 measures settings, has the policy fitted, calibrates it
    _fit_policy, or _fit_with_encoder             builds the model and its training data
    fit.fit                                       the loop: batch, loss, gradient, optimiser step

With plan selection, `_train_policy` first calls `selection.train_dynamics`, which trains the dynamics model.
While `fit` runs, `recorder.RunRecorder` writes losses and checkpoints.
"""

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nsde_policy.config import ImageEncoderConfig, SelectionConfig, TrainedEncoderConfig
from nsde_policy.core.batches import TensorRows
from nsde_policy.data.action_columns import NO_COLUMN, match_changes
from nsde_policy.data.convert import check_output
from nsde_policy.data.split import split_episodes
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.encoder_model import VISIBILITY_FILE
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import replace_file
from nsde_policy.interface.calibration import CALIBRATION_FILE, Calibration
from nsde_policy.log import show_log
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.loading import build_model, build_policy_spec
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord
from nsde_policy.tasks import NO_TASK
from nsde_policy.torch_threads import count_threads, use_threads

from .curves import describe_overfitting
from .dataset import TrainingSet, build_states, build_training_data, infer_settings, measure_state_spec
from .demos import find_mirror, find_motions, open_demonstrations, warn_if_few
from .distributed import join_ranks, use_own_gpu
from .encoder import EncoderTraining
from .fit import fit
from .options import Monitor, TrainOptions
from .presets import TrainingRequest, expand_names, is_store_of
from .recorder import MAX_FRAME_ROWS, MAX_VALIDATION_ROWS, RunRecorder, sample_rows
from .resume import check_files, check_record
from .selection import choose_kind, train_dynamics, write_rule
from .std_scale import measure_std_factors, scale_std

logger = logging.getLogger(__name__)

SMALLER_PRESETS = {"default": "fast", "pixels": "pixels-fast"}
"""Presets that are made for GPUs, and those for a CPU."""
TEACHER_FOLDER = "teacher"
"""Folder of an encoder's teacher, in the folder of that encoder."""


class Split(NamedTuple):
    """Indices of the episodes of each part, increasing."""

    training: tuple[int, ...]
    validation: tuple[int, ...]
    """Episodes whose losses and factors of σ are recorded."""


@dataclass(frozen=True)
class TrainingContext:
    """What the trainings of a run have in common."""

    data: TrainingSet
    """All demonstrations, without features of camera frames."""
    split: Split
    task: str
    env_kwargs: Mapping[str, object]
    options: TrainOptions


def train(
    demos: Path | str | Demonstrations | None = None,
    config: RunConfig | None = None,
    *,
    preset: Path | str | None = None,
    out: Path | str | None = None,
    policy: str | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    validation: float = 0.0,
    task: str = "auto",
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    obs: str = "state",
    monitor: Monitor | None = None,
    **settings: Any,
) -> Policy:
    """Train a policy on demonstrations as `nsde-policy train` does, and return it.

        policy = nsde_policy.train("my_robot", out="runs/arm", images=["top", "wrist"], validation=0.2)
        print(nsde_policy.score(policy, "my_robot"))
        with policy.session() as session:
            robot.send(session.step(robot.observe()))

    Args:
        demos: Demonstrations, or a store of any format; None for those in this package.
        config: Settings of the run, in place of a preset and a method.
        preset: Name or file of a preset, or a run to repeat with its settings and demonstrations; None for
            the default of the task.
        out: Run directory to write; by default below runs/.
        policy: Name of the method; by default the one of `preset`, or neural_sde.
        seed: Seed of weights, batches and noise.
        device: Torch device; "auto" uses a GPU if there is one.
        resume: Continue what is in `out` from its last checkpoint.
        validation: Fraction of the episodes to hold out of training.
        task: Name of the task; "auto" for what the demonstrations record.
        env: Environment of the task, a Gymnasium id or module:Class.
        env_kwargs: Keyword arguments of the environment.
        obs: Observations of the task.
        monitor: Called at every record of the losses.
        **settings: Other settings, with short names as on the command line (`steps=5000`, `rate=20`,
            `images=["top"]`, `obs_keys=["qpos"]`) or with their group: `**{"model.noise": 0.5}`.

    Raises:
        NsdePolicyError: If demonstrations or settings are not valid; the message says what to change.
    """
    show_log()
    if config is not None and (preset is not None or policy not in (None, config.method)):
        raise ConfigError(f"config has settings of {config.method}: leave out preset and policy")
    request = TrainingRequest(
        demos=Path(demos) if isinstance(demos, str) else demos,
        preset=config if preset is None else str(preset),
        method=policy,
        settings=expand_names(settings),
        task=task,
        obs=obs,
        env=env,
        env_kwargs=env_kwargs,
        options=TrainOptions(
            seed=seed,
            device=pick_device(device),
            resume=resume,
            monitor=monitor,
            validation=validation,
        ),
    )
    run = train_into_run_folder(request, None if out is None else Path(out))
    return Policy.from_pretrained(run.path)


def train_into_run_folder(request: TrainingRequest, out: Path | None) -> RunDirectory:
    """Train what a user asks for into `out`, by default a folder below runs/ that names the settings."""
    options = request.options
    if out is not None and not options.resume:
        check_files(RunDirectory(out), resume=False)  # before demonstrations are measured
    resolved = request.resolve()
    demos, config, task = resolved.demos, resolved.config, resolved.task
    smaller = SMALLER_PRESETS.get(resolved.preset)
    if smaller and options.device == "cpu":
        logger.info(
            "preset %s is made for GPUs; on a CPU, --preset %s is much quicker", resolved.preset, smaller
        )
    if out is None:
        about = task if task != NO_TASK or demos is None else name_demos(demos)
        preset = Path(resolved.preset).resolve().name.removesuffix(".json")
        name = f"{about}-{config.method}-{preset}-{options.seed}"
        out = Path("runs") / re.sub(r"[^\w.-]", "_", name)
        if isinstance(demos, Path) and not options.resume:
            refuse_other_store(RunDirectory(out), demos)
    if isinstance(demos, Path):
        check_output(demos, out)
    run = train_run(
        demos,
        config,
        out,
        task=task,
        env_kwargs=resolved.env_kwargs,
        options=replace(options, std_factors=resolved.std_factors),
        adapt=resolved.adapt,
    )
    if overfitting := describe_overfitting(run):
        logger.warning(overfitting)
    return run


def refuse_other_store(run: RunDirectory, demos: Path) -> None:
    """Raise `CheckpointError` if a run is of another store, which has the same name in another folder."""
    if run.config.exists() and not is_store_of(record := run.read_record(), demos):
        source = record.demos.source
        raise CheckpointError(f"{run.path} holds a run of {source}: give the run of {demos} another --out")


def name_demos(demos: Path | Demonstrations) -> str:
    """Return the name of demonstrations, or of their store without the endings of its format."""
    path = Path(demos.source) if isinstance(demos, Demonstrations) else demos
    return path.resolve().name.removesuffix(".zip").rpartition(".")[0] or path.resolve().name


def train_run(
    demos: Path | Demonstrations | None,
    config: RunConfig,
    out: Path,
    *,
    task: str = "none",
    env_kwargs: Mapping[str, object] | None = None,
    options: TrainOptions | None = None,
    adapt: Callable[[TrainingSet], RunConfig] | None = None,
) -> RunDirectory:
    """Train a policy, or resume its training, with a progress bar.

    On a CPU a resumed run gives bit-identical weights. Ctrl-C saves a checkpoint first.

    Args:
        demos: Store of the demonstrations, or the demonstrations; None for those of the task that are
            embedded in the package. Camera frames are read from a store.
        config: Settings of the run.
        out: Run directory.
        task: Name of the task, or its environment, see `get_task`.
        env_kwargs: Keyword arguments of the environment, recorded in the run.
        options: Seed, device, resuming and episodes to hold out.
        adapt: Chooses the settings of the policy again, by demonstrations with features of camera frames.

    Raises:
        CheckpointError: If `out` holds another run or other files, or another process is training into it.
        ConfigError: If the settings do not fit the demonstrations or the task, or a model would have too many
            parameters.
    """
    options = options or TrainOptions()
    _check_settings(config)
    demos, images = open_demonstrations(demos, config, task, env_kwargs or {})
    warn_if_few(demos, options.validation)
    context = TrainingContext(
        TrainingSet(demos, find_mirror(config.demos, task)),
        _split(demos, options),
        task,
        env_kwargs or {},
        options,
    )
    run = RunDirectory(join_ranks(out, config.batch_sizes, device=options.device, resume=options.resume))
    is_small = options.device == "cpu" and not config.model.gains_from_threads
    with run.lock(), use_threads(1) if is_small else nullcontext():
        check_files(run, resume=options.resume)
        if not images:
            _train_policy(run, context.data, config, context)
            return run
        held_out = context.split.validation
        encoder = EncoderTraining(context.data, images, config, run, options, held_out=held_out)
        with closing(encoder):
            features = _train_encoder(run, config, context, encoder)
            config = config if adapt is None else adapt(features)
            _train_policy(run, features, config, context, encoder)
    return run


def _split(demos: Demonstrations, options: TrainOptions) -> Split:
    """Hold out episodes for the validation."""
    _, validation = split_episodes(demos, options.validation, seed=options.seed)
    return Split(tuple(i for i in range(len(demos)) if i not in validation), validation)


def _train_encoder(
    run: RunDirectory, config: RunConfig, context: TrainingContext, encoder: EncoderTraining
) -> TrainingSet:
    """Train the encoder of a run before its policy; return the demonstrations with its features.

    The features are 0 if the encoder is trained together with the policy.
    """
    settings = config.encoder
    assert isinstance(settings, ImageEncoderConfig)
    if settings.is_trained_with_policy:
        return encoder.make_blank_features()
    encoder.record_or_check_settings(run, config)
    if not settings.occlusion_steps:
        encoder.pretrain(run.encoder)
        return encoder.read_features(run)
    teacher = RunDirectory(run.encoder.path / TEACHER_FOLDER)
    if isinstance(settings, TrainedEncoderConfig):
        encoder.pretrain(teacher)
        train = settings.train
    else:  # the teacher is trained together with a policy, in a separate run
        teacher_run, teacher = teacher, teacher.encoder
        if not encoder.is_finished(teacher):
            clean = replace(config, encoder=replace(settings, occlusion_steps=0), selection=SelectionConfig())
            _train_policy(teacher_run, encoder.make_blank_features(), clean, context, encoder)
        train = config.train
    encoder.learn_occlusion(run.encoder, teacher, replace(train, steps=settings.occlusion_steps))
    return encoder.read_features(run)


def _train_policy(
    run: RunDirectory,
    data: TrainingSet,
    config: RunConfig,
    context: TrainingContext,
    encoder: EncoderTraining | None = None,
) -> None:
    """Train a policy on demonstrations with features, with the encoder if `is_trained_with_policy` is set."""
    options, split = context.options, context.split
    is_joint = config.encoder.is_trained_with_policy
    train_set = data.select(split.training)

    # Settings that depend on the demonstrations
    config = infer_settings(train_set.without_features, config)
    motions = find_motions(config.demos, context.task)
    kind = choose_kind(data, config)
    selection = train_dynamics(run, train_set, config, options, kind=kind, motions=motions)
    config = config.replace_parts(selection={"select": "none" if selection is None else selection.kind})
    aligned = train_set if selection is None else selection.aligned
    demos = context.data.demos
    record = RunRecord(
        config,
        measure_state_spec(aligned, config, scale_features=not is_joint),
        context.task,
        options.seed,
        DemoRecord(
            demos.source,
            demos.fingerprint,
            len(demos),
            len(demos.obs),
            split.validation,
            demos.episode_fingerprints,
        ),
        env_kwargs=context.env_kwargs,
        cameras=encoder.cameras if encoder else (),
    )
    check_record(run, run.read_record() if run.config.exists() else None, record)

    # Fit
    held_out = data.select(split.validation) if split.validation else None
    if held_out is not None:
        logger.info("%d of %d episodes are held out for validation", len(held_out), len(data))
    if encoder is not None and is_joint:
        _fit_with_encoder(run, record, aligned, held_out, options, encoder)
        train_set = encoder.read_features(run).select(split.training)
    else:
        _fit_policy(run, record, aligned, held_out, options)

    # Calibrate
    if held_out is not None:
        std_factors = measure_std_factors(run, held_out.demos, device=options.device)
    else:
        std_factors = scale_std(run, options.std_factors)
    if selection is not None and selection.kind != "none":
        write_rule(run, selection)
    calibration = replace(calibrate(train_set, record), std_factors=std_factors)
    if encoder is not None:
        file = run.encoder.path / VISIBILITY_FILE  # missing if an earlier version trained the encoder
        visible = float(run.encoder.read_tensors(file)["usual"]) if file.exists() else None
        frames = encoder.measure_frames(run.encoder)
        calibration = replace(calibration, frames=frames, usually_visible=visible)
    replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())


def _fit_policy(
    run: RunDirectory,
    record: RunRecord,
    train_set: TrainingSet,
    held_out: TrainingSet | None,
    options: TrainOptions,
) -> None:
    """Fit the policy of a run."""
    config = record.config
    model = build_model(record)
    with_dropout = train_set.with_camera_dropout(config.demos, record.spec)
    pairs_or_windows = build_training_data(with_dropout, config)
    model.prepare(pairs_or_windows)
    rows: TensorRows | None = None
    if held_out is not None:
        without_copies = build_training_data(replace(held_out, copies=()), config)
        rows = sample_rows(without_copies, MAX_VALIDATION_ROWS, seed=options.seed)
    _save_record(run, record, options)
    recorder = RunRecorder(run, options, held_out=rows)
    fit(model.to(options.device), pairs_or_windows, config.train, seed=options.seed, recorder=recorder)


def _fit_with_encoder(
    run: RunDirectory,
    record: RunRecord,
    train_set: TrainingSet,
    held_out: TrainingSet | None,
    options: TrainOptions,
    encoder: EncoderTraining,
) -> None:
    """Fit the policy of a run together with its encoder, and write the features of all frames."""
    config = record.config
    model = encoder.join_policy(build_model(record))
    encoder.record_or_check_settings(run, config)
    windows = encoder.build_windows(train_set, config)
    model.prepare(windows.windows)
    rows: TensorRows | None = None
    if held_out is not None:
        without_copies = encoder.build_windows(replace(held_out, copies=()), config, held_out=True)
        rows = sample_rows(without_copies, MAX_FRAME_ROWS, seed=options.seed)
    _save_record(run, record, options)
    source = windows.sample(config.train.batch_size, options.seed, torch.device(options.device))
    with use_threads(count_threads()), closing(source):
        recorder = RunRecorder(run, options, held_out=rows)
        fit(model.to(options.device), source, config.train, seed=options.seed, recorder=recorder)
    encoder.write_features(run.encoder)


def _save_record(run: RunDirectory, record: RunRecord, options: TrainOptions) -> None:
    """Write config.json; that of a resumed run is left as it is."""
    if not (options.resume and run.training.exists()):
        run.save_record(record)


def calibrate(data: TrainingSet, record: RunRecord) -> Calibration:
    """Measure the calibration on the demonstrations, with mirror images as in training."""
    config, demos = record.config, data.with_mirror_images
    changes = match_changes(data.without_features, config.demos.first_action_from or ())
    return Calibration.measure(
        build_policy_spec(record),
        build_states(demos, config.demos),
        demos.act,
        demos.episode_ends,
        rate_hz=demos.rate_hz or 0.0,
        action_limits=demos.act_limits,
        delta_columns=tuple(action for action, column in enumerate(changes) if column != NO_COLUMN),
    )


def _check_settings(config: RunConfig) -> None:
    """Raise `ConfigError` if the method does not have what the settings ask for."""
    if config.selection.select == "none":
        return
    if not get_method(config.method).model_class().samples:
        raise ConfigError(
            f"{config.method} returns the same plan every time, so there is nothing to select: leave out "
            "--select"
        )
    if isinstance(config.encoder, ImageEncoderConfig) and not isinstance(
        config.encoder, TrainedEncoderConfig
    ):
        raise ConfigError(
            f"the features of the encoder {config.demos.encoder!r} change in training, so plans cannot be "
            "selected by them: use --encoder keypoints, or leave out --select"
        )


def pick_device(name: str) -> str:
    """Return a device name that torch can use, and make a numbered GPU the current one of this process.

    "auto" is CUDA if it is present, else the CPU.

    Raises:
        ConfigError: If torch cannot use the device here.
    """
    use_own_gpu(name)
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name).tolist()
    except Exception as error:  # of several types, by the backend that is missing
        reason = str(error).splitlines()[0][:100]
        raise ConfigError(f"device {name!r} cannot be used here ({reason}); try --device cpu") from None
    if name.startswith("cuda:"):
        torch.cuda.set_device(name)  # where streams and graphs are made
    return "cpu" if torch.device(name).type == "cpu" else name
