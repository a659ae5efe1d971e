"""Read what a run is trained on: demonstrations, camera frames, and what the environment of a task adds."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nsde_policy.assets import find_demos
from nsde_policy.data import Demonstrations, LazyFrames, Mirror
from nsde_policy.data.augmentation import RigidMotions
from nsde_policy.data.frames import check_frames
from nsde_policy.data.images import open_images_from
from nsde_policy.data.oddities import find_oddities
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.registry import load_from
from nsde_policy.data.resample import ResampledSource
from nsde_policy.data.roles import find_cameras
from nsde_policy.data.split import FEWEST_EPISODES, advise_validation, count_held_out
from nsde_policy.encoders import get_encoder
from nsde_policy.errors import ConfigError, EnvError, NsdePolicyError
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.tasks import Task, check_recorded_task, find_rate, get_task, with_env_kwargs
from nsde_policy.tasks.base import open_env
from nsde_policy.tasks.environments import close_env, run_env_code

if TYPE_CHECKING:
    import gymnasium as gym

logger = logging.getLogger(__name__)

LIMIT_MARGIN = 0.01
"""How far outside its limits an action may be, as a fraction of their range."""
OFTEN_OUTSIDE = 0.01
"""Fraction of actions outside that is worth a warning."""


def open_demonstrations(
    demos: Path | Demonstrations | None, config: RunConfig, task: str, env_kwargs: Mapping[str, object]
) -> tuple[Demonstrations, Mapping[str, LazyFrames]]:
    """Load what the settings select of a store, add what its task knows, and open its camera frames."""
    settings = config.demos
    images: Mapping[str, LazyFrames] = {}
    if not isinstance(demos, Demonstrations):
        store = demos or find_demos(get_task(task).name)
        images = open_training_images(settings, store)
        demos = load_training_demos(settings, store, task=task)
        report_store(demos, settings, store)
    elif settings.images:
        raise ConfigError(
            f"the camera frames {list(settings.images)} are read from a store: give its path instead of "
            "Demonstrations"
        )
    env = with_env_kwargs(get_task(task), env_kwargs)
    return add_environment(demos, env, settings.obs_keys, config.chunk), images


def load_training_demos(config: DemoConfig, path: Path, *, task: str = "none") -> Demonstrations:
    """Load the demonstrations of a store that the settings select; raise if they do not fit the task."""
    check_recorded_task(get_task(task), path)
    angles = () if config.angles else None
    with config.open_store(path) as source:
        demos = load_from(source, obs_keys=config.obs_keys, act_key=config.act_key, angles=angles)
    mirror = get_task(task).training.mirror
    if mirror is not None:
        _check_sizes(demos, task, (len(mirror.obs), len(mirror.act)))
    demos = demos.select_columns(config.obs_columns) if config.obs_columns else demos
    demos = replace(demos, angles=config.angles) if config.angles else demos
    demos = get_encoder(config.encoder).encode_demonstrations(demos)
    demos = demos.take(config.episodes) if config.episodes else demos
    return replace(demos, rate_hz=config.resample_hz or config.rate_hz or demos.rate_hz)


def report_store(demos: Demonstrations, config: DemoConfig, path: Path) -> None:
    """Log what is often a mistake in demonstrations, and the cameras of their store that are not used."""
    for line in find_oddities(demos):
        logger.warning("%s: %s", path, line)
    with open_source(path) as source:
        notes, cameras, recorded_hz = source.notes, find_cameras(source), source.rate_hz
    with config.open_store(path) as source:
        notes += (source.describe(),) if isinstance(source, ResampledSource) else ()
    if config.rate_hz and recorded_hz not in (None, config.rate_hz):
        logger.info("--rate %g overrides the recorded rate, %g Hz", config.rate_hz, recorded_hz)
    for line in notes:
        logger.info("%s: %s", path, line)
    if cameras and not config.images:
        logger.info(
            "%s has camera arrays that are not used: %s; --images %s, in Python images=, trains on them",
            path,
            ", ".join(f"{name} {shape[1:]}" for name, shape in cameras.items()),
            " ".join(cameras),
        )


def warn_if_few(demos: Demonstrations, fraction: float) -> None:
    """Log a warning if too few episodes are held out for a verdict."""
    episodes = len(demos)
    held_out = count_held_out(episodes, fraction) if fraction and episodes > 1 else FEWEST_EPISODES
    if held_out < FEWEST_EPISODES:
        logger.warning(
            "%d of %d episodes are held out, and a verdict of `score` needs %d: %s",
            held_out,
            episodes,
            FEWEST_EPISODES,
            advise_validation(episodes),
        )


def open_training_images(config: DemoConfig, path: Path) -> dict[str, LazyFrames]:
    """Open the camera frames of a store that the settings name; nothing is decoded yet."""
    if not config.images:
        return {}
    source = config.open_store(path)
    images = {name: open_images_from(source, name) for name in config.images}
    for name, frames in images.items():
        check_frames(frames, name)
    return images


def find_mirror(settings: DemoConfig, task: str) -> Mirror | None:
    """Return the mirror symmetry of the selected observation columns; None if the settings do not use it."""
    if not settings.mirror:
        return None
    mirror = get_task(task).training.mirror
    if mirror is None:
        raise ConfigError(f"the task {task!r} has no mirror symmetry; set demos.mirror to False")
    return mirror.select(settings.obs_columns) if settings.obs_columns else mirror


def find_motions(settings: DemoConfig, task: str) -> RigidMotions | None:
    """Return the rigid motions that align the ends of demonstrations; None if the settings use none."""
    if not settings.align_ends:
        return None
    motions = get_task(task).training.motions
    if motions is None:
        raise ConfigError(f"the task {task!r} has no rigid motions; set demos.align_ends to False")
    if settings.obs_columns or settings.images:
        raise ConfigError(
            "demonstrations are aligned by all columns of the state; set demos.align_ends to False"
        )
    return motions


def add_environment(demos: Demonstrations, task: Task, obs_keys: Sequence[str], chunk: int) -> Demonstrations:
    """Return the demonstrations with the rate and the limits of actions of a task, if they record none.

    Limits are left out if the task has no environment, or it cannot be made here.

    Raises:
        ConfigError: If observations or actions of the environment have other sizes, or cannot be used, or
            its episodes are known to be shorter than a chunk of actions.
    """
    demos = replace(demos, rate_hz=demos.rate_hz or task.rate_hz)
    if task.env_id is None:
        return demos
    from nsde_policy.tasks.adapter import EnvAdapter

    try:
        with _try_env(task) as env:
            if env is None:
                return demos
            with run_env_code(f"environment {task.env_id}: its spec"):
                limit = int(env.spec.max_episode_steps or 0) if env.spec else 0
            if limit and chunk > limit:
                raise ConfigError(
                    f"--chunk is {chunk}, but episodes of {task.name} end after {limit} steps: choose fewer"
                )
            adapter = EnvAdapter(env, task.env_id, obs_keys=obs_keys, obs_dim=demos.obs.shape[1])
            _check_sizes(demos, task.name, (adapter.obs_dim, adapter.act_dim))
            _check_actions(demos, task.name, adapter.low, adapter.high)
            limits = tuple(adapter.low.tolist()), tuple(adapter.high.tolist())
            rate_hz = demos.rate_hz or find_rate(task, env)
            return replace(demos, rate_hz=rate_hz, act_limits=demos.act_limits or limits)
    except EnvError as error:
        raise ConfigError(f"{error}; --task none trains without a task") from None


def _check_actions(demos: Demonstrations, task: str, low: np.ndarray, high: np.ndarray) -> None:
    """Compare actions with the limits of an environment, which clips those outside; raise if most are."""
    margin = LIMIT_MARGIN * np.where(np.isfinite(high - low), high - low, 1)
    fraction = ((demos.act < low - margin) | (demos.act > high + margin)).mean(axis=0)
    column = int(np.argmax(fraction))
    values = demos.act[:, column]
    outside = (
        f"{fraction[column]:.0%} of the actions in column {column} of {demos.source} are outside those of "
        f"the task {task!r}, {low[column]:g} to {high[column]:g}: they are {values.min():.4g} to "
        f"{values.max():.4g}"
    )
    if fraction[column] > 0.5:
        raise ConfigError(f"{outside}; name others with --act-key, or train with --task none")
    if fraction[column] > OFTEN_OUTSIDE:
        logger.warning("%s; the environment will clip them", outside)


def find_env_rate(task: Task) -> float | None:
    """Return the control periods per second of a task or its environment, None if unknown."""
    if task.rate_hz or task.env_id is None:
        return task.rate_hz
    with _try_env(task) as env:
        return None if env is None else find_rate(task, env)


@contextmanager
def _try_env(task: Task) -> Iterator["gym.Env[Any, Any] | None"]:
    """Open the environment of a task, and close it at the end; None if it cannot be made here."""
    try:
        env = open_env(task)
    except NsdePolicyError as error:
        logger.info("rate, sizes and limits of actions come from the demonstrations alone: %s", error)
        yield None
        return
    try:
        yield env
    finally:
        close_env(env)


def _check_sizes(demos: Demonstrations, task: str, expected: tuple[int, int]) -> None:
    """Raise `ConfigError` if observations and actions do not have the sizes of a task."""
    sizes = demos.obs.shape[1], demos.act.shape[1]
    if sizes != expected:
        raise ConfigError(
            f"{demos.source} holds {sizes[0]}-D observations and {sizes[1]}-D actions, those of the task "
            f"{task!r} are {expected[0]}-D and {expected[1]}-D; --task none trains without a task"
        )
