"""Run directories of video models: train one, load one.

    config.json           settings, seed, videos, version
    model.safetensors     averaged weights after the second phase
    metrics.jsonl         losses of the second phase
    first_phase/          model and losses after the first phase
    */training.safetensors  checkpoints to resume from

A run without a second phase has no folder `first_phase`.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nsde_policy import __version__
from nsde_policy.config import BaseConfig, TrainConfig
from nsde_policy.errors import CheckpointError, PluginError
from nsde_policy.files import read_json, replace_file
from nsde_policy.inference.loading import check_weights
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.checkpoints import Monitor, check_files
from nsde_policy.video.base import VideoModel
from nsde_policy.video.config import UnrollConfig, VideoConfig
from nsde_policy.video.phases import PhaseTrainer
from nsde_policy.video.registry import find_video_method, get_video_method
from nsde_policy.video.windows import Videos

logger = logging.getLogger(__name__)

FIRST_PHASE = "first_phase"
"""Folder with the model after the first phase."""


@dataclass(frozen=True)
class VideoRecord(BaseConfig):
    """What a run directory records."""

    method: str
    """Name of the video method."""
    config: dict[str, Any]
    """Settings, see `VideoConfig`."""
    seed: int
    source: str
    """Where the videos came from."""
    fingerprint: str
    """Identifies the videos."""
    increment_std: float
    """Root mean square change of a pixel over one frame."""
    held_out: tuple[int, ...] = ()
    """Videos of the source that were not used for training, by `video train --validation`."""
    source_videos: int = 0
    """Videos that the source held; 0 in runs of earlier versions."""
    rate_hz: float | None = None
    """Frames per second; None if the source does not say."""
    version: str = field(default=__version__)

    def settings(self) -> VideoConfig:
        """Return the settings as objects."""
        model = get_video_method(self.method).config.from_dict(self.config["model"])
        rest = {name: value for name, value in self.config.items() if name != "model"}
        return VideoConfig.from_dict({"model": model, **rest})

    def build_model(self) -> VideoModel:
        """Build the model with its initial weights."""
        config = self.settings()
        return find_video_method(config.model).model_class()(
            config.model,
            size=config.size,
            increment_std=self.increment_std,
            generator=torch.Generator().manual_seed(self.seed),
        )


def train_video(
    videos: Videos,
    config: VideoConfig,
    path: Path,
    *,
    seed: int,
    device: str = "cpu",
    resume: bool = False,
    save_every_s: float = 15.0,
    monitor: Monitor | None = None,
    compile_network: bool = False,
) -> RunDirectory:
    """Train, or resume training, a video model into a run directory, in one or two phases.

    The first phase predicts one frame from recorded frames with noise; the second, unless
    `config.unroll.frames` is 0, predicts several frames, each from the model's own predictions. On CPU a
    resumed run gives bit-identical weights. `compile_network` uses torch.compile: steps are faster, the start
    takes a minute or more.

    Raises:
        CheckpointError: If `path` holds another run or other files, or another process is training into it.
        DemoError: If no video is as long as a training window.
    """
    run = RunDirectory(path)
    with run.lock():
        check_files(run, resume=resume)
        videos.find_windows(config.model.context + max(config.unroll.frames, 1))
        record = _make_record(videos, config, seed)
        if run.config.exists() and read_video_record(path).to_json() != record.to_json():
            raise CheckpointError(
                f"{path} was trained with other settings, another seed or other videos; resume with the same "
                "ones or choose another --out"
            )
        replace_file(run.config, record.to_json().encode())
        trainer = PhaseTrainer(videos, path, device, resume, save_every_s, monitor)
        model = record.build_model().to(device)
        if compile_network:
            model.network.compile(dynamic=False)
        phases: list[tuple[TrainConfig, UnrollConfig | None]] = [(config.train, None)]
        if config.unroll.frames:
            phases.append((config.unroll.train, config.unroll))
        for k, (train, unrolled) in enumerate(phases):
            is_last = k + 1 == len(phases)
            directory = run if is_last else RunDirectory(path / FIRST_PHASE)
            model.unrolled = unrolled
            trainer.train(directory, model, train, window=model.window, seed=seed + k)
    return run


def load_video_model(path: Path | str, *, device: str = "cpu", first_phase: bool = False) -> VideoModel:
    """Load the model of a run directory, or the one after its first phase.

    Raises:
        CheckpointError: If the phase is missing, or weights do not fit, as those of an earlier network.
    """
    run = RunDirectory(Path(path))
    record = read_video_record(run.path)
    config = record.settings()
    directory = RunDirectory(run.path / FIRST_PHASE) if first_phase else run
    _check_phase(directory, config.unroll.train if config.unroll.frames and not first_phase else config.train)
    weights = directory.read_weights()
    advice = f"; the run was written by version {record.version}: train it again"
    with check_weights(directory, weights, advice=advice):
        with torch.device("meta"):  # sizes of a damaged config.json take no memory
            model = record.build_model()
        model.load_state_dict(weights, assign=True)
    return model.to(device).eval()


def _check_phase(directory: RunDirectory, train: TrainConfig) -> None:
    """Warn if a phase stopped early; raise `CheckpointError` if it left no weights."""
    how = "finish it with `video train --resume` and the same settings"
    if not directory.model.exists():
        if directory.path.name == FIRST_PHASE and directory.path.with_name("model.safetensors").exists():
            raise CheckpointError(f"{directory.path.parent} has no second phase: leave out --first-phase")
        raise CheckpointError(f"{directory.path} has no weights yet, training was interrupted: {how}")
    steps = max((int(record["step"]) for record in directory.read_metrics()), default=train.steps)
    if steps < train.steps:
        logger.warning("%s stopped at step %d of %d: %s", directory.path, steps, train.steps, how)


def _make_record(videos: Videos, config: VideoConfig, seed: int) -> VideoRecord:
    return VideoRecord(
        method=find_video_method(config.model).name,
        config=config.to_dict(),
        seed=seed,
        source=videos.name,
        fingerprint=videos.fingerprint,
        increment_std=videos.increment_std(),
        held_out=videos.left_out,
        source_videos=len(videos.episode_ends),
        rate_hz=videos.rate_hz,
    )


def read_video_record(path: Path) -> VideoRecord:
    """Read and check the record of a run directory."""
    file = RunDirectory(path).config
    if not file.exists():
        raise CheckpointError(f"{path} holds no video model: it has no config.json")
    values = read_json(file, error=CheckpointError)
    if not isinstance(values, dict) or "increment_std" not in values:
        raise CheckpointError(f"{path} was not written by `nsde-policy video train`")
    try:
        record = VideoRecord.from_dict(upgrade_record(values))
        record.settings()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, PluginError):
            raise
        raise CheckpointError(f"{file} is not a valid record of a video run: {error}") from error
    return record


def upgrade_record(values: dict[str, Any]) -> dict[str, Any]:
    """Convert the record of a run that an earlier version wrote.

    Raises:
        CheckpointError: If the run predicts latents or takes actions, which this version does not.
    """
    config = dict(values["config"])
    dropped = {name: config.pop(name, None) for name in ("actions", "latents", "autoencoder")}
    if dropped["actions"] or dropped["latents"]:
        what = "takes actions" if dropped["actions"] else "predicts latents"
        raise CheckpointError(f"the model {what}, which version 0.2 was the last to support: train it again")
    kept = {name: value for name, value in values.items() if name not in ("act_low", "act_high")}
    return {**kept, "config": config}
