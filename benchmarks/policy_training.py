"""Train one policy of an experiment, in a process of its own."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

from experiment import Training

from nsde_policy.eval.machine import device_name
from nsde_policy.files import replace_file
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.options import TrainingProgress, TrainOptions
from nsde_policy.training.train import pick_device, train_run

DEVICE_FILE = "trained_on.txt"
"""File of a run with the device of its training; written last, so a run that has it is finished."""


def train_policy(training: Training, path: Path, demos: Path, device: str, stop_at: float) -> bool:
    """Train a policy, or resume it; return whether it is finished.

    Args:
        training: What is trained.
        path: Run directory.
        demos: Store of demonstrations.
        device: Torch device.
        stop_at: Wall-clock time, `time.time`, at which the training is saved and ends.
    """
    config, task = training.make_config(demos), training.make_task()
    if training.encoder_of:
        other = RunDirectory(path.parent / Path(replace(training, row=training.encoder_of).folder).name)
        trained = other.read_record().config
        config = replace(
            config, encoder=trained.encoder, demos=replace(config.demos, encoder=trained.demos.encoder)
        )
        shutil.copytree(other.encoder.path, path / "encoder", dirs_exist_ok=True)

    def stop(progress: TrainingProgress) -> None:
        if progress.step < progress.steps and time.time() > stop_at:
            raise KeyboardInterrupt

    choice = task.training.observations.get(training.observations)
    options = TrainOptions(seed=training.seed, device=pick_device(device), resume=path.exists(), monitor=stop)
    try:
        train_run(
            demos,
            config,
            path,
            task=task.name,
            env_kwargs=dict(choice.env_kwargs) if choice else {},
            options=options,
            adapt=training.find_adaptation(config),
        )
    except KeyboardInterrupt:
        return False
    replace_file(path / DEVICE_FILE, device_name(device).encode())
    return True
