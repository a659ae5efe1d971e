"""Train a policy on demonstrations into a run directory; a run can be interrupted and resumed."""

import logging
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nsde_policy.config import ImageEncoderConfig, SelectionConfig, TrainedEncoderConfig
from nsde_policy.core.targets import TensorRows
from nsde_policy.data.action_columns import NO_COLUMN, match_changes
from nsde_policy.data.split import split_episodes
from nsde_policy.data.types import Demonstrations
from nsde_policy.encoders.encoder_model import VISIBILITY_FILE
from nsde_policy.errors import ConfigError
from nsde_policy.files import replace_file
from nsde_policy.interface.calibration import CALIBRATION_FILE, Calibration
from nsde_policy.methods.base import TrainableModel
from nsde_policy.methods.registry import get_method
from nsde_policy.policy.loading import build_model, build_policy_spec, limit_parameters
from nsde_policy.policy.torch_threads import count_threads, use_threads
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import DemoRecord, RunDirectory, RunRecord
from nsde_policy.tasks import get_task, with_env_kwargs

from .checkpoints import check_files, refuse_other_training
from .dataset import (
    build_states,
    build_training_data,
    infer_settings,
    measure_demonstrations,
)
from .demos import (
    add_environment,
    find_mirror,
    find_motions,
    open_demonstrations,
    warn_if_few,
)
from .distributed import join_ranks, use_own_gpu
from .encoder import EncoderTraining
from .recorder import MAX_FRAME_ROWS, MAX_VALIDATION_ROWS, FitOptions, Monitor, fit_run, sample_rows
from .selection import align_ends, train_dynamics, write_rule
from .std_scale import check_std_scale, fit_std_scale
from .training_set import TrainingSet

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainOptions:
    """How a run is trained: what is neither a setting of the policy nor part of its data."""

    device: str = "cpu"
    """Device name of torch, or "auto"."""
    resume: bool = False
    """Continue from the last checkpoint."""
    save_every_s: float = 15.0
    """Seconds between checkpoints."""
    validation: float = 0.0
    """Fraction of the episodes that is held out; the losses on them are recorded."""
    scale_std: float = 0.0
    """Fraction of the other episodes that is held out, to scale σ to them after training."""


class Split(NamedTuple):
    """Indices of the episodes of each part, increasing."""

    training: tuple[int, ...]
    validation: tuple[int, ...]
    """Episodes whose losses are recorded."""
    std_scale: tuple[int, ...]
    """Episodes that σ is scaled to."""


@dataclass(frozen=True)
class Job:
    """What the trainings of a run have in common."""

    data: TrainingSet
    """All demonstrations, without features of camera frames."""
    images: Mapping[str, "LazyFrames"]
    """Frames by camera."""
    split: Split
    task: str
    env_kwargs: Mapping[str, object]
    options: FitOptions

    @property
    def demos_record(self) -> DemoRecord:
        """What a run records about its demonstrations."""
        demos = self.data.demos
        return DemoRecord(
            demos.source,
            demos.fingerprint,
            len(demos),
            len(demos.obs),
            self.split.validation,
            demos.episode_fingerprints,
        )

    def open_encoder(self, config: RunConfig, run: RunDirectory) -> EncoderTraining:
        """Return the training of the encoder of a run."""
        held_out = self.split.validation
        return EncoderTraining(self.data, self.images, config, run, self.options, held_out=held_out)


DEFAULT_OPTIONS = TrainOptions()


def train_run(
    demos: Path | Demonstrations | None,
    config: RunConfig,
    out: Path,
    *,
    task: str = "none",
    env_kwargs: Mapping[str, object] | None = None,
    images: Mapping[str, "LazyFrames"] | None = None,
    seed: int = 0,
    monitor: Monitor | None = None,
    options: TrainOptions = DEFAULT_OPTIONS,
) -> RunDirectory:
    """Train a policy, or resume its training, with a progress bar.

    On a CPU a resumed run gives bit-identical weights. Ctrl-C saves a checkpoint first.

    Args:
        demos: Store of the demonstrations, or the demonstrations; None for those of the task that are
            embedded in the package.
        config: Settings of the run.
        out: Run directory.
        task: Name of the task, or its environment, see `get_task`.
        env_kwargs: Keyword arguments of the environment, recorded in the run.
        images: Frames by camera, if `demos` are no store. Their encoder is trained before the policy, or with
            it.
        seed: Seed of weights, batches and noise.
        monitor: Called at every record of the losses.
        options: Device, resuming and episodes to hold out.

    Raises:
        CheckpointError: If `out` holds another run or other files, or another process is training into it.
        ConfigError: If the settings do not fit the demonstrations or the task, or a model would have too many
            parameters.
    """
    _check_settings(config, options)
    options = replace(options, device=pick_device(options.device))
    demos, images = open_demonstrations(demos, images or {}, config.demos, task)
    warn_if_few(demos, options.validation)
    env = with_env_kwargs(get_task(task), env_kwargs or {})
    demos = add_environment(demos, env, config.demos.obs_keys, config.chunk)
    data, split = TrainingSet(demos, find_mirror(config.demos, task)), _split(demos, options, seed)
    fits = FitOptions(seed, options.device, options.resume, monitor, options.save_every_s)
    job = Job(data, images, split, task, env_kwargs or {}, fits)
    run = RunDirectory(join_ranks(out, config.batch_sizes, device=options.device, resume=options.resume))
    encoder = job.open_encoder(config, run) if images else None
    is_small = options.device == "cpu" and not config.model.gains_from_threads
    with run.lock(), use_threads(1) if is_small else nullcontext():
        check_files(run, resume=options.resume, has_encoder=encoder is not None)
        if encoder is not None:
            data = _train_encoder(encoder, config, job)
        _train_policy(run, data, config, job, encoder)
    return run


def _train_encoder(encoder: EncoderTraining, config: RunConfig, job: Job) -> TrainingSet:
    """Train an encoder before the policy; return the demonstrations with its features.

    They are 0 if the encoder will be trained together with the policy. One that learns to see past occlusion
    may have a teacher that is trained with another policy.
    """
    if encoder.is_joint:
        return encoder.make_blank_features()
    if encoder.needs_teacher:
        assert isinstance(config.encoder, ImageEncoderConfig)
        plain = replace(
            config, encoder=replace(config.encoder, occlusion_steps=0), selection=SelectionConfig()
        )
        teacher = job.open_encoder(plain, encoder.teacher)
        _train_policy(encoder.teacher, teacher.make_blank_features(), plain, job, teacher)
    encoder.check_settings()
    encoder.train_phases()
    return encoder.read_features()


def _train_policy(
    run: RunDirectory, data: TrainingSet, config: RunConfig, job: Job, encoder: EncoderTraining | None
) -> None:
    """Train a policy on demonstrations with features; if these are 0, together with the encoder."""
    options, joint = job.options, encoder if encoder is not None and encoder.is_joint else None
    training = data.select(job.split.training)
    config = infer_settings(training.recorded, config)
    motions = find_motions(config.demos, job.task)
    selection = train_dynamics(run, training, config, options, aligns=motions is not None)
    used = training if selection is None or motions is None else align_ends(selection, motions, config)
    config = config.replace_parts(selection={"select": "none" if selection is None else selection.kind})
    spec = measure_demonstrations(used, config, scale_features=joint is None)
    record = RunRecord(
        config,
        spec,
        job.task,
        options.seed,
        job.demos_record,
        env_kwargs=job.env_kwargs,
        cameras=encoder.cameras if encoder else (),
    )
    refuse_other_training(run.path, run.read_record() if run.config.exists() else None, record)
    held_out = data.select(job.split.validation) if job.split.validation else None
    _fit_policy(run, record, used, held_out, job, joint)
    if job.split.std_scale:
        fit_std_scale(run, data.demos.select(job.split.std_scale), device=options.device)
    write_rule(run, selection)
    if joint is not None:
        joint.write_features(run.encoder)
        joint.close()
        training = joint.read_features().select(job.split.training)
    _write_calibration(run, calibrate(training, record), encoder)


def _fit_policy(
    run: RunDirectory,
    record: RunRecord,
    training: TrainingSet,
    held_out: TrainingSet | None,
    job: Job,
    joint: EncoderTraining | None,
) -> None:
    """Fit the policy of a run, and the encoder that is trained with it."""
    config, options = record.config, job.options
    with limit_parameters(error=ConfigError):
        policy = build_model(record)
    model: TrainableModel[Any] = policy
    if joint is not None:
        model = joint.build_model(policy)  # before files are written: some methods cannot train an encoder
        joint.check_settings()
        table = joint.build_windows(training)
        source: Any = table.sample(config.train.batch_size, options.seed, torch.device(options.device))
        model.prepare(table.windows)
    else:
        source = build_training_data(training.lose_cameras(config.demos, record.spec), config)
        model.prepare(source)
    rows = None
    if held_out is not None:
        logger.info("%d of %d episodes are held out for validation", len(held_out), len(job.data))
        rows = _sample_held_out(held_out, config, options.seed, joint)
    if not (options.resume and run.training.exists()):
        run.save_record(record)
    with (
        use_threads(count_threads()) if joint else nullcontext(),
        closing(source) if joint else nullcontext(),
    ):
        fit_run(run, model, source, config.train, options, held_out=rows)


def _sample_held_out(
    held_out: TrainingSet, config: RunConfig, seed: int, joint: EncoderTraining | None
) -> TensorRows:
    """Return rows of held-out episodes, without disturbed copies, whose losses are recorded."""
    clean = replace(held_out, copies=())
    if joint is not None:
        return sample_rows(joint.build_windows(clean, held_out=True), MAX_FRAME_ROWS, seed=seed)
    data: TensorRows = build_training_data(clean, config)
    return sample_rows(data, MAX_VALIDATION_ROWS, seed=seed)


def calibrate(data: TrainingSet, record: RunRecord) -> Calibration:
    """Measure the calibration on the demonstrations, with mirror images as in training."""
    config, demos = record.config, data.with_mirror_images
    changes = match_changes(data.recorded, config.demos.first_action_from or ())
    return Calibration.measure(
        build_policy_spec(record),
        build_states(demos, config.demos),
        demos.act,
        demos.episode_ends,
        rate_hz=demos.rate_hz or 0.0,
        action_limits=demos.act_limits,
        delta_columns=tuple(action for action, column in enumerate(changes) if column != NO_COLUMN),
    )


def _write_calibration(run: RunDirectory, calibration: Calibration, encoder: EncoderTraining | None) -> None:
    """Write calibration.json, with the range of the camera frames if there are some."""
    if encoder is not None:
        file = run.encoder.path / VISIBILITY_FILE  # missing if an earlier version trained the encoder
        visible = float(run.encoder.read_tensors(file)["usual"]) if file.exists() else None
        calibration = replace(calibration, frames=encoder.measure_frames(), usually_visible=visible)
    replace_file(run.path / CALIBRATION_FILE, calibration.to_json().encode())


def _split(demos: Demonstrations, options: TrainOptions, seed: int) -> Split:
    """Hold out episodes for the validation, and some of the others for the scale of σ."""
    others, _, validation = split_episodes(demos, options.validation, seed=seed)
    rest = [i for i in range(len(demos)) if i not in validation]
    _, _, places = split_episodes(others, options.scale_std, seed=seed, flag="--scale-std")
    std_scale = tuple(rest[i] for i in places)
    return Split(tuple(i for i in rest if i not in std_scale), validation, std_scale)


def _check_settings(config: RunConfig, options: TrainOptions) -> None:
    """Raise `ConfigError` if the method does not have what the settings ask for."""
    check_std_scale(config, options.scale_std)
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
    """Return a device name that torch can use, or raise `ConfigError`; "auto" prefers a GPU."""
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
