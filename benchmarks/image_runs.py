"""Train policies with cameras, each in a process of its own: encoder and policy, from frames of a store."""

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from experiment import Training
from state_runs import NOTE_FILE, TrainingNote

from nsde_policy.data import LazyFrames
from nsde_policy.eval.compare.run import read_training_time
from nsde_policy.eval.disturbances import CameraCondition, CameraDisturbances
from nsde_policy.eval.latency import device_name
from nsde_policy.files import replace_file
from nsde_policy.inference.loading import load_encoder, load_model
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import ENCODER_FOLDER, RunDirectory
from nsde_policy.training.checkpoints import TrainingProgress
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.run import train_run


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


def train_with_images(
    training: Training, path: Path, demos: Path, device: str, stop_at: float, *, alone: bool
) -> bool:
    """Train a policy with cameras, or resume it; return whether it is finished.

    Args:
        training: What is trained.
        path: Run directory.
        demos: Store with frames.
        device: Torch device.
        stop_at: Wall-clock time, `time.time`, at which the training is saved and ends.
        alone: Whether no other run trains on the device, so that its time counts.
    """
    config = training.make_config(demos)
    if training.encoder_of:
        _copy_encoder(path.with_name(f"{training.encoder_of}-{training.seed}"), path, config)

    def stop(progress: TrainingProgress) -> None:
        if progress.step < progress.steps and time.time() > stop_at:
            raise KeyboardInterrupt

    given = load_training_demos(config.demos, demos, task=training.task.name)
    images = open_training_images(config.demos, demos)
    if training.trained_on:
        condition = CameraCondition(**training.trained_on)
        images = {
            name: DisturbedFrames(frames, given.episode_ends, condition) for name, frames in images.items()
        }
    task = training.task.make_task()
    try:
        run = train_run(
            given,
            config,
            path,
            task=task.name,
            env_kwargs=dict(task.training.observations[training.task.obs].env_kwargs),
            seed=training.seed,
            device=device,
            resume=path.exists(),
            save_every_s=1e9,
            images=images,
            monitor=stop,
        )
    except KeyboardInterrupt:
        return False
    _write_note(run, device, alone=alone)
    return True


def _write_note(run: RunDirectory, device: str, *, alone: bool) -> None:
    record, model = load_model(run)
    encoder = load_encoder(run, record)
    assert encoder is not None
    size = sum(p.numel() for module in (model, encoder) for p in module.parameters())
    seconds = read_training_time(run) or 0.0
    note = TrainingNote(
        seconds if alone else None, seconds / record.config.train.steps, size, device_name(device)
    )
    replace_file(run.path / NOTE_FILE, json.dumps(asdict(note)).encode())
    torch.cuda.empty_cache()


def _copy_encoder(source: Path, path: Path, config: RunConfig) -> None:
    """Copy a trained encoder of the same settings into a new run, which then does not train it again."""
    if path.exists() or not (source / NOTE_FILE).exists():
        return
    if RunDirectory(source).read_record().config.encoder == config.encoder:
        ignored = shutil.ignore_patterns("request.json")
        shutil.copytree(source / ENCODER_FOLDER, path / ENCODER_FOLDER, ignore=ignored)
