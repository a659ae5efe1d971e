"""Settings of a run by the name of a preset; `auto` measures the demonstrations."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsde_policy.assets import find_demos
from nsde_policy.encoders.keypoints.config import SMALL_ENCODER
from nsde_policy.encoders.registry import get_encoder
from nsde_policy.errors import ConfigError
from nsde_policy.files import read_json
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.tasks import Task
from nsde_policy.tasks.training_defaults import AUTO_PRESET, CAMERA_PRESET

logger = logging.getLogger(__name__)

CAMERA_ENCODER = "keypoints"
"""Encoder of camera frames if --images names some and no other encoder is given."""
PRESET_FILE = "preset.json"
"""File that `tune` writes into its folder."""
CHOSEN_FIELDS = ("width", "dropout", "noise", "diffusion", "alpha")
"""Settings of a model, its networks and sampling that a method may choose by statistics."""


def resolve_preset(
    task: Task,
    preset: str | None,
    method: str,
    *,
    demos: Path | None,
    selection: Mapping[str, Any],
    validation: float = 0.0,
    seed: int = 0,
    overridden: Collection[str] = (),
) -> tuple[str, RunConfig]:
    """Return the name and the settings of a preset, by default the task's.

    The presets `auto` and `pixels-fast` measure the demonstrations, by default those of the task in the
    package, without the fraction `validation` that `seed` holds out. `selection` holds fields of `DemoConfig`
    that differ from the task's. Settings in `overridden` were set by flags and are not listed as chosen.
    """
    name = preset or choose_preset(task, method)
    if (config := read_preset(name, method)) is not None:
        return Path(name).stem, config
    if name != AUTO_PRESET and (name != CAMERA_PRESET or name in task.training.presets(method)):
        return name, task.preset(name, method)
    from nsde_policy.data.split import split_episodes
    from nsde_policy.data.statistics import measure_statistics
    from nsde_policy.training.demos import find_env_rate, load_training_demos

    given = replace(task.training.demos, **selection)
    every_column = replace(given, obs_columns=())
    found = load_training_demos(every_column, demos or find_demos(task.name))
    found = replace(found, rate_hz=found.rate_hz or find_env_rate(task))
    statistics = measure_statistics(split_episodes(found, validation, seed=seed).training)
    if given.images:
        statistics = statistics.without_comparison()  # the pictures decide what follows
    config = task.preset(AUTO_PRESET, method, statistics=statistics)
    choice = _describe_choice(config, overridden)
    logger.info("preset %s: %s; chosen: %s", name, statistics.describe(), choice)
    return name, config


def read_preset(preset: str | None, method: str) -> RunConfig | None:
    """Read the settings of a preset that is a file, as `nsde-policy tune` writes it; None for names."""
    path = Path(preset or "")
    if path.suffix != ".json":
        if preset and (path / PRESET_FILE).exists():
            raise ConfigError(f"{preset} is a folder: use --preset {path / PRESET_FILE}")
        return None
    settings = read_json(path, error=ConfigError)
    try:
        config = RunConfig.from_dict(settings)
    except ConfigError as error:
        raise ConfigError(f"{preset} is not a preset: {error}; expected a file that `tune` wrote") from None
    if config.method != method:
        raise ConfigError(f"{preset} holds settings of {config.method}: add --policy {config.method}")
    return config


def choose_preset(task: Task, method: str) -> str:
    """Return the task's default preset, or `default` if the method does not have it."""
    usual = task.training.default_preset
    return usual if usual == AUTO_PRESET or usual in task.training.presets(method) else "default"


def add_cameras(config: RunConfig, demos: DemoConfig, *, small: bool = False) -> RunConfig:
    """Return the settings with the cameras and the encoder of a selection, by default keypoints."""
    name = demos.encoder
    if demos.images and not config.demos.images and name == config.demos.encoder:
        name = CAMERA_ENCODER
    chosen = get_encoder(name).config
    usual = SMALL_ENCODER if small and isinstance(SMALL_ENCODER, chosen) else chosen()
    settings = config.encoder if isinstance(config.encoder, chosen) else usual
    return replace(config, demos=replace(config.demos, images=demos.images, encoder=name), encoder=settings)


def shorten_parts(config: RunConfig, share: float, given: Collection[str]) -> RunConfig:
    """Shorten what is trained before the policy to a share of its steps, unless a flag sets them."""
    if share >= 1:
        return config
    for name in ("encoder", "selection"):
        train = getattr(getattr(config, name), "train", None)
        if train is not None and f"--{name}.train.steps" not in given:
            shorter = replace(train, steps=max(1, round(share * train.steps)))
            config = config.replace_parts(**{name: {"train": shorter}})
    masked = getattr(config.encoder, "masked_steps", 0)
    if masked and "--encoder.masked-steps" not in given:
        config = config.replace_parts(encoder={"masked_steps": max(1, round(share * masked))})
    return config


def _describe_choice(config: RunConfig, overridden: Collection[str]) -> str:
    """Describe the settings that `auto` chose and no flag sets, with the names of their flags."""
    chosen: dict[str, float] = {"steps": config.train.steps, "chunk": config.chunk}
    if get_method(config.method).adapt is not None:
        model = config.model
        parts = [model, getattr(model, "network", None), getattr(model, "sampling", None)]
        values = {field: value for part in parts if part is not None for field, value in vars(part).items()}
        chosen |= {field: values[field] for field in CHOSEN_FIELDS if field in values}
    kept = [f"{field} {value:g}" for field, value in chosen.items() if field not in overridden]
    return ", ".join(kept) or "nothing, flags set all"
