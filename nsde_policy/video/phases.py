"""Phases of the training of a video run, each with checkpoints in a folder of its own."""

from dataclasses import dataclass
from pathlib import Path

from nsde_policy.config import TrainConfig
from nsde_policy.methods.base import TrainableModel
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.checkpoints import Monitor, train_loop
from nsde_policy.training.loop import Training
from nsde_policy.video.base import VideoBatch
from nsde_policy.video.windows import Videos


@dataclass(frozen=True)
class PhaseTrainer:
    """Trains models on the same videos, one after the other.

    Args:
        videos: Videos to train on.
        folder: Where frames that do not fit into memory are kept.
        device: Where models are trained.
        resume: Whether each phase continues from its last checkpoint.
        save_every_s: Seconds between checkpoints.
        monitor: Called for every record of the metrics.
    """

    videos: Videos
    folder: Path
    device: str
    resume: bool
    save_every_s: float
    monitor: Monitor | None

    def train(
        self,
        directory: RunDirectory,
        model: TrainableModel[VideoBatch],
        train: TrainConfig,
        *,
        window: int,
        seed: int,
    ) -> None:
        """Train a model on windows of frames to the end; it ends with the averaged weights."""
        directory.path.mkdir(exist_ok=True)
        source = self.videos.source(
            window, train.batch_size, device=self.device, seed=seed, folder=self.folder
        )
        training = Training(model, source, train, seed=seed)
        if self.resume and directory.training.exists():
            training.restore(directory.read_training_state())
        directory.truncate_metrics(training.step if self.resume else -1)
        try:
            train_loop(directory, training, train, self.save_every_s, self.monitor)
        finally:
            source.close()
