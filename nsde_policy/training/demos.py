"""Read what a run is trained on: the demonstrations and camera frames of a store."""

import logging
from dataclasses import replace
from pathlib import Path

from nsde_policy.data import Demonstrations, LazyFrames, load_demonstrations, open_images
from nsde_policy.data.frames import check_frames
from nsde_policy.data.statistics import find_oddities
from nsde_policy.data.zarr_store.roles import find_cameras
from nsde_policy.encoders import get_encoder
from nsde_policy.run_config import DemoConfig
from nsde_policy.tasks import check_recorded_task, get_task
from nsde_policy.training.dataset import check_task_sizes

logger = logging.getLogger(__name__)


def load_training_demos(config: DemoConfig, path: Path, *, task: str = "none") -> Demonstrations:
    """Load the demonstrations of a store that the settings select.

    Raises:
        ConfigError: If they were made in another environment than that of the task, or their sizes are not
            those of the task.
    """
    check_recorded_task(get_task(task), path)
    demos = load_demonstrations(
        path,
        obs_keys=config.obs_keys,
        act_key=config.act_key,
        angles=() if config.angles else None,
        accept_omitted_chunks=config.accept_omitted_chunks,
    )
    _check_task(demos, task)
    demos = demos.select_columns(config.obs_columns) if config.obs_columns else demos
    if config.rate_hz:
        if demos.rate_hz and demos.rate_hz != config.rate_hz:
            logger.info("--rate %g overrides the recorded rate, %g Hz", config.rate_hz, demos.rate_hz)
        demos = replace(demos, rate_hz=config.rate_hz)
    demos = replace(demos, angles=config.angles) if config.angles else demos
    demos = get_encoder(config.encoder).encode_demonstrations(demos)
    return demos.take(config.episodes) if config.episodes else demos


def report_store(demos: Demonstrations, config: DemoConfig, path: Path) -> None:
    """Log what is often a mistake in demonstrations, and the cameras of their store that are not used."""
    for line in find_oddities(demos):
        logger.warning("%s: %s", path, line)
    cameras = {} if config.images else find_cameras(path)
    if cameras:
        logger.info(
            "%s has camera arrays that are not used: %s; train on them with --images %s",
            path,
            ", ".join(f"{name} {shape[1:]}" for name, shape in cameras.items()),
            " ".join(cameras),
        )


def _check_task(demos: Demonstrations, task: str) -> None:
    """Raise `ConfigError` if the demonstrations do not have the sizes of a task."""
    mirror = get_task(task).training.mirror
    if mirror is not None:
        check_task_sizes(demos, task, (len(mirror.obs), len(mirror.act)))


def open_training_images(config: DemoConfig, path: Path) -> dict[str, LazyFrames]:
    """Open the camera frames of a store that the settings name; nothing is decoded yet.

    Raises:
        DemoError: If an array does not hold colour images.
    """
    images = {}
    for name in config.images:
        images[name] = open_images(path, key=name, accept_omitted_chunks=config.accept_omitted_chunks)
        check_frames(images[name], name)
    return images
