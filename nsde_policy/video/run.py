"""Run directories of video models: train one, load one.

    config.json           settings, seed, videos, versions
    model.safetensors     averaged weights after the second stage
    metrics.jsonl         losses of the second stage
    first_phase/          model and losses after the first stage
    */training.safetensors  checkpoints to resume from

A run without a second stage has no folder `first_phase`.
"""

import logging
from pathlib import Path

import torch

from nsde_policy.config import TrainConfig
from nsde_policy.errors import CheckpointError
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import check_weights
from nsde_policy.run_directory import DemoRecord, RunDirectory
from nsde_policy.training.checkpoints import Monitor, check_files, refuse_other_settings, train_loop
from nsde_policy.training.loop import Training
from nsde_policy.video.base import VideoModel
from nsde_policy.video.config import UnrollConfig, VideoConfig
from nsde_policy.video.record import VideoRecord
from nsde_policy.video.windows import Videos

logger = logging.getLogger(__name__)

FIRST_STAGE_FOLDER = "first_phase"
"""Folder with the model after the first stage."""


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
        record = _make_record(videos, config, seed)
        is_same = not run.config.exists() or VideoRecord.read(path).same_training(record)
        refuse_other_settings(run, is_same=is_same)
        loaded = videos.to(device)
        replace_file(run.config, record.to_json().encode())
        model = record.build_model().to(device)
        stages: list[tuple[RunDirectory, TrainConfig, UnrollConfig | None]] = [(run, config.train, None)]
        if config.unroll.frames:
            first = RunDirectory(path / FIRST_STAGE_FOLDER)
            stages = [(first, config.train, None), (run, config.unroll.train, config.unroll)]
        for number, (directory, train, unrolled) in enumerate(stages):
            model.unrolled = unrolled
            directory.path.mkdir(exist_ok=True)
            source = loaded.source(model.window, train.batch_size)
            training = Training(model, source, train, seed=seed + number)
            if resume and directory.training.exists():
                training.restore(directory.read_tensors(directory.training))
            directory.truncate_metrics(training.step if resume else -1)
            title = f"stage {number + 1} of {len(stages)}"
            train_loop(directory, training, train, monitor, title=title)
    return run


def load_video_model(path: Path | str, *, device: str = "cpu", first_stage: bool = False) -> VideoModel:
    """Load the model of a run directory, or the one after its first stage.

    Raises:
        CheckpointError: If the stage is missing, or weights do not fit, as those of an earlier network.
    """
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
    how = "finish it with `video train --resume` and the same settings"
    if not directory.model.exists():
        raise CheckpointError(f"{directory.path} has no weights yet, training was interrupted: {how}")
    steps = max((int(record["step"]) for record in directory.read_metrics()), default=train.steps)
    if steps < train.steps:
        logger.warning("%s stopped at step %d of %d: %s", directory.path, steps, train.steps, how)


def _make_record(videos: Videos, config: VideoConfig, seed: int) -> VideoRecord:
    about = DemoRecord(
        source=videos.name,
        fingerprint=videos.fingerprint,
        episodes=len(videos.episode_ends),
        frames=int(videos.episode_ends[-1]),
        held_out=videos.left_out,
    )
    return VideoRecord(config, seed, about, videos.increment_std())
