"""Train one policy of an experiment, in a process of its own."""

import time
from pathlib import Path

import numpy as np
from experiment import Training

from nsde_policy.data import LazyFrames
from nsde_policy.eval.disturbances import CameraCondition, CameraDisturbances
from nsde_policy.eval.latency import device_name
from nsde_policy.files import replace_file
from nsde_policy.training.checkpoints import TrainingProgress
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.run import TrainOptions, train_run
from nsde_policy.training.train import prepare_task

DEVICE_FILE = "trained_on.txt"
"""File of a run with the device of its training; written last, so a run that has it is finished."""


class DisturbedFrames(LazyFrames):
    """Frames of a store with the disturbances of a camera, one draw per episode; read them in order."""

    def __init__(self, frames: LazyFrames, episode_ends: np.ndarray, condition: CameraCondition) -> None:
        self._frames = frames
        self._ends = episode_ends
        self.shape = frames.shape
        self.dtype = frames.dtype
        self._cameras = [CameraDisturbances(condition, seed) for seed in range(len(episode_ends))]

    def __getitem__(self, index: int | slice) -> np.ndarray:
        start, stop, _ = (index if isinstance(index, slice) else slice(index, index + 1)).indices(len(self))
        episodes = np.searchsorted(self._ends, np.arange(start, stop), side="right")
        found = self._frames[start:stop]
        changed = [self._cameras[i].change({"": frame})[""] for i, frame in zip(episodes, found, strict=True)]
        return np.stack(changed) if isinstance(index, slice) else changed[0]


def train_policy(training: Training, path: Path, demos: Path, device: str, stop_at: float) -> bool:
    """Train a policy, or resume it; return whether it is finished.

    Args:
        training: What is trained.
        path: Run directory.
        demos: Store of demonstrations.
        device: Torch device.
        stop_at: Wall-clock time, `time.time`, at which the training is saved and ends.
    """
    config, task = training.make_config(demos), training.task.make_task()

    def stop(progress: TrainingProgress) -> None:
        if progress.step < progress.steps and time.time() > stop_at:
            raise KeyboardInterrupt

    given = load_training_demos(config.demos, demos, task=training.task.name)
    images: dict[str, LazyFrames] = open_training_images(config.demos, demos)
    if training.trained_on:
        condition = CameraCondition(**training.trained_on)
        images = {
            name: DisturbedFrames(frames, given.episode_ends, condition) for name, frames in images.items()
        }
    observations = task.training.observations[training.task.obs].env_kwargs if training.task.obs else {}
    given, trained = prepare_task(given, config, task.name, dict(observations))
    options = TrainOptions(device=device, resume=path.exists())
    try:
        train_run(
            given,
            config,
            path,
            seed=training.seed,
            task=trained,
            images=images,
            monitor=stop,
            options=options,
        )
    except KeyboardInterrupt:
        return False
    replace_file(path / DEVICE_FILE, device_name(device).encode())
    return True
