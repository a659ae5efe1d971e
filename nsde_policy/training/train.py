"""Train on the demonstrations of a task: load them, add what the task knows, and choose a device."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nsde_policy.assets import find_demos
from nsde_policy.config import ImageEncoderConfig, TrainedEncoderConfig
from nsde_policy.data.split import FEWEST_EPISODES, count_held_out, suggest_fraction
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import get_task, with_env_kwargs
from nsde_policy.training.checkpoints import Monitor
from nsde_policy.training.demos import (
    add_environment,
    find_mirror,
    find_motions,
    load_training_demos,
    open_training_images,
    report_store,
)
from nsde_policy.training.distributed import use_own_gpu
from nsde_policy.training.run import DEFAULT_OPTIONS, TrainedTask, TrainOptions, train_run
from nsde_policy.training.std_scale import check_std_scale

if TYPE_CHECKING:
    from nsde_policy.data.images import LazyFrames

logger = logging.getLogger(__name__)


def train_task(
    demos: Path | Demonstrations | None,
    config: RunConfig,
    path: Path,
    *,
    task: str,
    env_kwargs: Mapping[str, object] | None = None,
    seed: int,
    monitor: Monitor | None = None,
    options: TrainOptions = DEFAULT_OPTIONS,
) -> RunDirectory:
    """Train into a run directory with a progress bar.

    Args:
        demos: Store of the demonstrations, or the demonstrations; None for those of the task that are
            embedded in the package.
        config: Settings of the run.
        path: Run directory.
        task: Name of the task, or its environment, see `get_task`.
        env_kwargs: Keyword arguments of the environment, recorded in the run.
        seed: Seed of weights, batches and noise.
        monitor: Called at every record of the losses.
        options: Device, resuming and episodes to hold out.
    """
    check_std_scale(config, options.scale_std)
    images: dict[str, LazyFrames] = {}
    if not isinstance(demos, Demonstrations):
        store = demos or find_demos(get_task(task).name)
        images = open_training_images(config.demos, store)
        demos = load_training_demos(config.demos, store, task=task)
        report_store(demos, config.demos, store)
    _warn_if_few(demos, options.validation)
    demos, trained = prepare_task(demos, config, task, env_kwargs)
    device = pick_device(options.device)
    if device == "cpu" and not config.model.gains_from_threads:
        torch.set_num_threads(1)
    options = replace(options, device=device)
    return train_run(
        demos, config, path, seed=seed, task=trained, images=images, monitor=monitor, options=options
    )


def _warn_if_few(demos: Demonstrations, fraction: float) -> None:
    """Log a warning if too few episodes are held out for a verdict."""
    episodes = len(demos)
    held_out = count_held_out(episodes, fraction) if fraction and episodes > 1 else FEWEST_EPISODES
    if held_out < FEWEST_EPISODES:
        larger = suggest_fraction(episodes)
        suffices = count_held_out(episodes, larger) >= FEWEST_EPISODES
        logger.warning(
            "%d of %d episodes are held out, and a verdict of `score` needs %d: %s",
            held_out,
            episodes,
            FEWEST_EPISODES,
            f"use --validation {larger:g}" if suffices else "record more",
        )


def _check_selection(config: RunConfig) -> None:
    """Raise `ConfigError` if the settings ask for plan selection where plans cannot be selected."""
    wants_selection = config.selection.select != "none"
    if wants_selection and not get_method(config.method).model_class().samples:
        raise ConfigError(
            f"{config.method} returns the same plan every time, so there is nothing to select: leave out "
            "--select"
        )
    is_joint = isinstance(config.encoder, ImageEncoderConfig)
    if wants_selection and is_joint and not isinstance(config.encoder, TrainedEncoderConfig):
        raise ConfigError(
            f"the features of the encoder {config.demos.encoder!r} change in training, so plans cannot be "
            "selected by them: use --encoder keypoints, or leave out --select"
        )


def prepare_task(
    demos: Demonstrations, config: RunConfig, name: str, env_kwargs: Mapping[str, object] | None = None
) -> tuple[Demonstrations, TrainedTask]:
    """Return the demonstrations with what the task adds, and what the run needs to know about the task."""
    _check_selection(config)
    task = with_env_kwargs(get_task(name), env_kwargs or {})
    demos = add_environment(demos, task, config.demos.obs_keys, config.chunk)
    mirror, motions = find_mirror(config.demos, name), find_motions(config.demos, name)
    return demos, TrainedTask(name, env_kwargs or {}, mirror, motions)


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
