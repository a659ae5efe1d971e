"""Run directories of video models: what they record, train one, load one.

    config.json           settings, seed, videos, versions
    model.safetensors     averaged weights after the second stage
    metrics.jsonl         losses of the second stage
    first_stage/          model and losses after the first stage
    */training.safetensors  checkpoints to resume from

A run without a second stage has no folder `first_stage`.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nsde_policy.config import BaseConfig, TrainConfig
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.files import read_json, replace_file
from nsde_policy.policy.loading import check_weights
from nsde_policy.run_directory import RUN_FORMAT, DemoRecord, RunDirectory, find_versions
from nsde_policy.training.fit import fit
from nsde_policy.training.options import Monitor, TrainOptions
from nsde_policy.training.recorder import RunRecorder
from nsde_policy.training.resume import check_files, check_record

from .baselines import FlowMatchingVideo, InterpolantsVideo
from .neural_sde import NeuralSDEVideo
from .next_frame import VideoModel
from .settings import VideoConfig
from .videos import Videos

logger = logging.getLogger(__name__)

FIRST_STAGE_FOLDER = "first_stage"
VIDEO_KIND = "video"
"""Value of `kind` in config.json, which policies do not have."""
MODELS: dict[str, type[VideoModel]] = {
    "neural_sde": NeuralSDEVideo,
    "flow_matching": FlowMatchingVideo,
    "interpolants": InterpolantsVideo,
}
"""Class of the model by the name of the method."""


@dataclass(frozen=True)
class VideoRecord(BaseConfig):
    """Content of config.json."""

    config: VideoConfig
    seed: int
    videos: DemoRecord
    increment_std: float
    """Root mean square change of a pixel over one frame."""
    versions: dict[str, str] = field(default_factory=find_versions)
    """Versions of packages that may influence results; by default those installed now."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts and numbers, with the format and the kind of the run."""
        kind = {"format": RUN_FORMAT, "kind": VIDEO_KIND}
        return {**kind, **super().to_dict(), "config": self.config.to_dict()}

    @classmethod
    def read(cls, path: Path) -> "VideoRecord":
        """Read the record of a run directory; raise `CheckpointError` if it is missing or damaged."""
        file = RunDirectory(path).config
        if not file.exists():
            raise CheckpointError(f"{path} holds no video model: it has no config.json")
        values = read_json(file, error=CheckpointError)
        try:
            if values.pop("kind", None) != VIDEO_KIND or values.pop("format", None) != RUN_FORMAT:
                raise CheckpointError(f"{path} was not written by `nsde-video train` of this version")
            return cls.from_dict(values)
        except CheckpointError:
            raise
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(f"{file} is not a valid record of a video run: {error}") from error

    def same_training(self, other: "VideoRecord") -> bool:
        """Return whether `other` can resume this run: same settings, seed and videos."""
        one, two = ((run.config, run.seed, run.videos.fingerprint) for run in (self, other))
        return one == two

    def build_model(self) -> VideoModel:
        """Build the model with its initial weights."""
        return MODELS[self.config.model.method](
            self.config.model,
            size=self.config.size,
            increment_std=self.increment_std,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def refuse_training_videos(self, videos: Videos) -> None:
        """Raise `ConfigError` if videos are those that the run was trained on, or a copy of them."""
        is_same_path = Path(videos.name).resolve() == Path(self.videos.source).resolve()
        if is_same_path or videos.fingerprint == self.videos.fingerprint:
            raise ConfigError(
                f"the model was trained on the videos of {videos.name}: score it on others with --data"
            )


def train_video(
    videos: Videos,
    config: VideoConfig,
    path: Path,
    *,
    seed: int,
    device: str = "cpu",
    resume: bool = False,
    monitor: Monitor | None = None,
) -> RunDirectory:
    """Train, or resume training, a video model into a run directory, in one or two stages.

    The first stage predicts one frame from recorded frames with noise; the second, unless
    `config.unroll.frames` is 0, predicts several frames, each from the model's own predictions. On CPU a
    resumed run gives bit-identical weights.

    Raises:
        CheckpointError: If `path` holds another run or other files, or another process is training into it.
        DemoError: If no video is as long as a training window.
    """
    run = RunDirectory(path)
    with run.lock():
        check_files(run, resume=resume)
        videos.find_windows(config.model.history + max(config.unroll.frames, 1))
        about = DemoRecord(
            source=videos.name,
            fingerprint=videos.fingerprint,
            episodes=len(videos),
            frames=int(videos.episode_ends[-1]),
        )
        record = VideoRecord(config, seed, about, videos.increment_std())
        check_record(run, VideoRecord.read(run.path) if run.config.exists() else None, record)
        loaded = videos.to(device)
        replace_file(run.config, record.to_json().encode())
        model = record.build_model().to(device)
        stages = [(run, config.train, model.unroll)]
        if config.unroll.frames:
            first = RunDirectory(run.path / FIRST_STAGE_FOLDER)
            stages = [(first, config.train, model.unroll), (run, config.unroll.train, config.unroll)]
        for number, (directory, train, unroll) in enumerate(stages):
            model.unroll = unroll
            directory.path.mkdir(exist_ok=True)
            options = TrainOptions(seed=seed + number, device=device, resume=resume, monitor=monitor)
            title = f"stage {number + 1} of {len(stages)}"
            recorder = RunRecorder(directory, options, title=title)
            fit(model, loaded.windows(model.window), train, seed=options.seed, recorder=recorder)
    return run


def load_video_model(path: Path | str, *, device: str = "cpu", first_stage: bool = False) -> VideoModel:
    """Load the model of a run directory, or the one after its first stage."""
    run = RunDirectory(Path(path))
    record = VideoRecord.read(run.path)
    config = record.config
    directory = RunDirectory(run.path / FIRST_STAGE_FOLDER) if first_stage else run
    _check_stage(directory, config.unroll.train if config.unroll.frames and not first_stage else config.train)
    weights = directory.read_weights()
    advice = f"; the run was written by version {record.versions.get('nsde_policy')}: train it again"
    with check_weights(directory, weights, advice=advice):
        with torch.device("meta"):  # sizes of a damaged config.json take no memory
            model = record.build_model()
        model.load_state_dict(weights, assign=True)
    return model.to(device).eval()


def _check_stage(directory: RunDirectory, train: TrainConfig) -> None:
    """Warn if a stage stopped early; raise `CheckpointError` if it left no weights."""
    advice = "finish it with `video train --resume` and the same settings"
    if not directory.model.exists():
        raise CheckpointError(f"{directory.path} has no weights yet, training was interrupted: {advice}")
    steps = max((int(record["step"]) for record in directory.read_metrics()), default=train.steps)
    if steps < train.steps:
        logger.warning("%s stopped at step %d of %d: %s", directory.path, steps, train.steps, advice)
