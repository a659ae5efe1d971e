"""Settings of a run: a preset or another run, changed by some settings; `auto` measures demonstrations."""

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsde_policy.assets import USUAL_OBSERVATIONS, find_demos
from nsde_policy.config import ImageEncoderConfig, TrainedEncoderConfig
from nsde_policy.encoders.registry import get_encoder
from nsde_policy.errors import ConfigError
from nsde_policy.files import read_json
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.tasks import NO_TASK, TASKS, Task, find_task, get_task, get_task_of_run, with_observations
from nsde_policy.tasks.base import open_env
from nsde_policy.tasks.environments import close_env
from nsde_policy.tasks.training_defaults import AUTO_PRESET, CAMERA_PRESET

from .options import TrainOptions

if TYPE_CHECKING:
    from nsde_policy.data.types import Demonstrations
    from nsde_policy.run_directory import RunDirectory, RunRecord

    from .dataset import TrainingSet

logger = logging.getLogger(__name__)

DEFAULT_METHOD = "neural_sde"
CAMERA_ENCODER, OTHER_CAMERA_ENCODER = "landmarks", "keypoints"
"""Encoder of camera frames if --images names some and no other encoder is given; and what `auto` takes
instead unless every camera shows landmarks."""
PRESET_FILE = "preset.json"
"""File that `tune` writes into its folder."""
DESCRIBED_SETTINGS = (
    "train.steps",
    "chunk",
    "model.network.width",
    "model.network.dropout",
    "model.noise",
    "model.sampling.diffusion",
    "model.sampling.alpha",
    "encoder.size",
    "encoder.keypoints",
    "encoder.train.steps",
)
"""Settings that the log shows, if the method has them."""
SHORT_NAMES = {
    "obs_keys": "demos.obs_keys",
    "images": "demos.images",
    "images_dropout": "demos.images_dropout",
    "encoder": "demos.encoder",
    "act_key": "demos.act_key",
    "angles": "demos.angles",
    "rate": "demos.rate_hz",
    "resample": "demos.resample_hz",
    "accept_omitted_chunks": "demos.accept_omitted_chunks",
    "select": "selection.select",
    "steps": "train.steps",
    "batch_size": "train.batch_size",
    "lr": "train.learning_rate",
    "width": "model.network.width",
}
"""Short names of settings, without their group."""


def expand_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their path; short names are known."""
    paths = {name: name.replace("-", "_") for name in settings}
    return {SHORT_NAMES.get(path, path): settings[name] for name, path in paths.items()}


class ResolvedTraining(NamedTuple):
    """What is trained, after the task is found and the settings of the preset are changed."""

    demos: "Path | Demonstrations | None"
    """What the policy is trained on; None for the demonstrations of the task in the package."""
    task: str
    env_kwargs: dict[str, Any]
    """Keyword arguments of the environment that the run records."""
    preset: str
    """Name of the preset, or path of the file or run."""
    config: RunConfig
    adapt: "Callable[[TrainingSet], RunConfig] | None" = None
    """Chooses the settings again, when the demonstrations have the features of their camera frames."""
    std_factors: tuple[float, ...] = ()
    """Factors of σ that the run in place of a preset recorded."""


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """What a user asks for: the arguments of `train.train`, with settings by their path."""

    demos: "Path | Demonstrations | None"
    preset: RunConfig | str | None
    """Settings, the name or file of a preset, or the path of a run."""
    method: str | None
    """None for the method of the file or run, else for the Neural SDE."""
    settings: Mapping[str, Any]
    options: TrainOptions
    """The default preset for cameras depends on its device."""
    task: str = "auto"
    obs: str = USUAL_OBSERVATIONS
    env: str | None = None
    env_kwargs: Mapping[str, Any] | None = None

    def resolve(self) -> ResolvedTraining:
        """Find the task of the demonstrations, and the settings of the preset with the changes.

        A run in place of a preset also names the demonstrations, unless there are others.
        """
        run = find_run(self.preset)
        if run is None:
            return self._resolve()
        from nsde_policy.interface.calibration import Calibration
        from nsde_policy.policy.loading import build_policy_spec

        record = run.read_record()
        factors = Calibration.read(run.path, build_policy_spec(record)).std_factors
        request = self if self.demos is not None else replace(self, demos=find_store(run.path, record))
        return request._resolve(record)._replace(std_factors=factors)

    def _resolve(self, record: "RunRecord | None" = None) -> ResolvedTraining:
        """Return the task and the settings; `record` is of the run in place of a preset."""
        if self.demos is None and self.obs != USUAL_OBSERVATIONS:
            raise ConfigError(
                "the demonstrations of this package have no camera frames: give others with --demos, or "
                "record some with nsde-policy collect --policy shipped --obs pixels --out demos.zarr"
            )
        name, env_kwargs = self._choose_task(record)
        task = with_observations(get_task(name), self.obs)
        if self.obs != USUAL_OBSERVATIONS:
            env_kwargs = {**task.training.observations[self.obs].env_kwargs, **env_kwargs}
        if self.env is not None or self.env_kwargs is not None:
            close_env(open_env(get_task(name), env_kwargs))  # its errors should not wait for the evaluation
        if isinstance(self.preset, RunConfig):
            preset, config, adapt = "settings", self.preset.change(self.settings), None
        else:
            preset, config, adapt = self._resolve_settings(task, self.preset)
        return ResolvedTraining(self.demos, name, env_kwargs, preset, config, adapt)

    def _resolve_settings(
        self, task: Task, preset: str | None
    ) -> tuple[str, RunConfig, "Callable[[TrainingSet], RunConfig] | None"]:
        """Return the name of the preset, its settings with the changes, and what adapts them to features.

        Cameras get an encoder. Fewer steps shorten its training and that of plan selection in proportion.
        """
        prefix = "demos."
        changes = {
            path.removeprefix(prefix): value
            for path, value in self.settings.items()
            if path.startswith(prefix)
        }
        name, config = self._find_settings(task, preset, changes)

        def change(config: RunConfig) -> RunConfig:
            config = add_cameras(config, config.demos.change(changes), small=name == CAMERA_PRESET)
            changed = config.change(self.settings)
            return shorten_parts(changed, changed.train.steps / config.train.steps, self.settings)

        def adapt(data: "TrainingSet") -> RunConfig:
            adapted = change(adapt_to_features(config, task, name, data))
            logger.info("settings: %s", describe_settings(adapted))
            return adapted

        changed = change(config)
        is_provisional = is_adapted(changed, task, name)
        until = " until the encoder is trained" if is_provisional else ""
        logger.info("settings%s: %s", until, describe_settings(changed))
        return name, changed, adapt if is_provisional else None

    def _find_settings(
        self, task: Task, preset: str | None, changes: Mapping[str, Any]
    ) -> tuple[str, RunConfig]:
        """Return a preset, by default the one that suits task and device, and its settings.

        `changes` of the settings of the demonstrations decide what is measured.
        """
        if preset is not None and (config := read_preset(preset, self.method)) is not None:
            return preset, config
        demo_settings = task.training.demos.change(changes)
        method = self.method or DEFAULT_METHOD
        preset = preset or choose_preset(task, method)
        if preset == AUTO_PRESET and demo_settings.images and self.options.device == "cpu":
            preset = CAMERA_PRESET
        if preset == CAMERA_PRESET and self.obs == USUAL_OBSERVATIONS and not demo_settings.images:
            raise ConfigError(
                "pixels-fast is for camera frames, but no images are named: add --obs pixels or --images"
            )
        return resolve_preset(task, preset, method, demos=self.demos, demo_settings=demo_settings)

    def _choose_task(self, record: "RunRecord | None") -> tuple[str, dict[str, Any]]:
        """Return the name of the task, and the keyword arguments of its environment that the run records."""
        env_kwargs = dict(self.env_kwargs or {})
        if self.env is not None:
            name = get_task(self.env).name
            if self.task not in ("auto", name):
                raise ConfigError(f"--task {self.task} and --env {self.env} are two tasks; leave one out")
            if self.demos is None:
                find_demos(name)
            return name, env_kwargs
        if self.task != "auto":
            return TASKS.get(self.task).name, env_kwargs
        if record is not None and is_store_of(record, self.demos):
            logger.info("preset %s: demonstrations %s, task %s", self.preset, self.demos, record.task)
            return get_task_of_run(record).name, {**record.env_kwargs, **env_kwargs}
        if self.demos is not None and not isinstance(self.demos, Path):
            return NO_TASK, env_kwargs
        recorded = find_task(self.demos)
        logger.info("%s", recorded.reason)
        return recorded.name, {**recorded.env_kwargs, **env_kwargs}


def resolve_preset(
    task: Task,
    preset: str | None,
    method: str,
    *,
    demos: "Path | Demonstrations | None",
    demo_settings: DemoConfig | None = None,
) -> tuple[str, RunConfig]:
    """Return the name and the settings of a preset, by default the task's.

    The presets `auto` and `pixels-fast` measure the demonstrations, by default those of the task in the
    package, which are read with `demo_settings`, by default the task's.
    """
    name = preset or choose_preset(task, method)
    if not is_measured(task, name, method):
        return name, task.preset(name, method)
    from nsde_policy.data.statistics import measure_statistics

    from .demos import find_env_rate, load_training_demos

    settings, store = demo_settings or task.training.demos, None
    if demos is None or isinstance(demos, Path):
        store = demos or find_demos(task.name)
        every_column = settings if settings.images else replace(settings, obs_columns=())
        demos = load_training_demos(every_column, store)
    demos = replace(demos, rate_hz=demos.rate_hz or find_env_rate(task))
    # Held-out episodes count too: a run that is scored on them has the settings of the run on all episodes.
    statistics = measure_statistics(demos)
    if settings.images:
        statistics = statistics.without_comparison()  # the pictures decide what follows
    logger.info("preset %s: %s", name, statistics.describe())
    config = task.preset(name, method, statistics=statistics)
    if settings.images and store is not None:
        encoder = find_encoder(settings, store, demos)
        named = replace(config.demos, images=settings.images, encoder=encoder)
        config = add_cameras(config, named, small=name == CAMERA_PRESET)
    return name, config


def is_measured(task: Task, preset: str, method: str) -> bool:
    """Return whether a preset measures the demonstrations."""
    return preset == AUTO_PRESET or (preset == CAMERA_PRESET and preset not in task.training.presets(method))


def is_adapted(config: RunConfig, task: Task, preset: str) -> bool:
    """Return whether a preset chooses the settings again when the encoder of camera frames is trained."""
    return is_measured(task, preset, config.method) and isinstance(config.encoder, TrainedEncoderConfig)


def find_encoder(settings: DemoConfig, store: Path, demos: "Demonstrations") -> str:
    """Return the encoder of the settings, but keypoints in place of landmarks if a camera shows none."""
    from nsde_policy.encoders.landmarks.matching import count_landmarks

    from .demos import open_training_images

    encoder = get_encoder(settings.encoder)
    name = encoder.name if encoder.takes_images else CAMERA_ENCODER
    if name != CAMERA_ENCODER:
        return name
    images = open_training_images(settings, store)
    numbers = {camera: count_landmarks(frames, demos) for camera, frames in images.items()}
    what = ", ".join(f"{number} in {camera}" for camera, number in numbers.items())
    logger.info("landmarks in the first frames of episodes: %s", what)
    return name if all(numbers.values()) else OTHER_CAMERA_ENCODER


def adapt_to_features(config: RunConfig, task: Task, preset: str, data: "TrainingSet") -> RunConfig:
    """Choose the settings of a policy again, by demonstrations with features of camera frames."""
    from nsde_policy.data.statistics import measure_movement, measure_statistics

    robot_movement = measure_movement(data.without_features)
    statistics = replace(measure_statistics(data.demos), robot_movement=robot_movement)
    logger.info("preset %s, with features of the frames: %s", preset, statistics.describe())
    adapted = task.preset(preset, config.method, statistics=statistics)
    demo_settings = replace(adapted.demos, images=config.demos.images, encoder=config.demos.encoder)
    return replace(adapted, demos=demo_settings, encoder=config.encoder)


def read_preset(preset: str, method: str | None) -> RunConfig | None:
    """Read the settings of a run, or of a file as `nsde-policy tune` writes it; None for names of presets."""
    if (run := find_run(preset)) is not None:
        config = run.read_record().config
    elif preset.endswith(".json"):
        settings = read_json(Path(preset), error=ConfigError)
        try:
            config = RunConfig.from_dict(settings)
        except ConfigError as error:
            message = f"{preset} is not a preset: {error}; expected a file that `tune` wrote"
            raise ConfigError(message) from None
    else:
        return None
    if method not in (None, config.method):
        raise ConfigError(f"{preset} holds settings of {config.method}: leave out --policy {method}")
    return config


def find_run(preset: RunConfig | str | None) -> "RunDirectory | None":
    """Return the run that is named in place of a preset; None for settings, names and files.

    A run is named by a path with a separator, so that a folder called `fast` does not hide the preset.
    """
    if not isinstance(preset, str) or preset.endswith(".json") or not {"/", os.sep} & {*preset}:
        return None
    path = Path(preset)
    if (path / PRESET_FILE).exists():
        raise ConfigError(f"{preset} is a folder: use --preset {path / PRESET_FILE}")
    if not (path / "config.json").exists():
        problem = "is not a run: it has no config.json" if path.exists() else "does not exist"
        raise ConfigError(f"--preset {preset} {problem}; expected a folder that `nsde-policy train` wrote")
    from nsde_policy.run_directory import RunDirectory  # imports torch

    return RunDirectory(path)


def find_store(run: Path, record: "RunRecord") -> Path:
    """Return the store that a run was trained on; raise `ConfigError` if it is not there."""
    store = Path(record.demos.source)
    if not store.exists():
        raise ConfigError(
            f"{run} was trained on {store}, which does not exist here: name its demonstrations with --demos"
        )
    return store


def is_store_of(record: "RunRecord", demos: "Path | Demonstrations | None") -> bool:
    """Return whether a run was trained on a store."""
    return isinstance(demos, Path) and demos.resolve() == Path(record.demos.source).resolve()


def choose_preset(task: Task, method: str) -> str:
    """Return the task's default preset, or `default` if the method does not have it."""
    usual = task.training.default_preset
    return usual if usual == AUTO_PRESET or usual in task.training.presets(method) else "default"


def add_cameras(config: RunConfig, demos: DemoConfig, *, small: bool = False) -> RunConfig:
    """Return the settings with the cameras and the encoder that `demos` names, by default keypoints."""
    name = demos.encoder
    if demos.images and not config.demos.images and name == config.demos.encoder:
        name = CAMERA_ENCODER
    encoder = get_encoder(name).config
    usual = (get_encoder(name).small if small else None) or encoder()
    settings = config.encoder if type(config.encoder) is encoder else usual
    return replace(config, demos=replace(config.demos, images=demos.images, encoder=name), encoder=settings)


def shorten_parts(config: RunConfig, fraction: float, settings: Collection[str]) -> RunConfig:
    """Shorten what is trained before the policy to a fraction of its steps, unless these are set."""

    def shorten(steps: int) -> int:
        return max(1, round(fraction * steps))

    encoder, selection = config.encoder, config.selection
    if fraction >= 1:
        return config
    if isinstance(encoder, ImageEncoderConfig):
        if encoder.occlusion_steps and "encoder.occlusion_steps" not in settings:
            encoder = replace(encoder, occlusion_steps=shorten(encoder.occlusion_steps))
        if isinstance(encoder, TrainedEncoderConfig) and "encoder.train.steps" not in settings:
            encoder = replace(encoder, train=replace(encoder.train, steps=shorten(encoder.train.steps)))
    if "selection.train.steps" not in settings:
        selection = replace(selection, train=replace(selection.train, steps=shorten(selection.train.steps)))
    return replace(config, encoder=encoder, selection=selection)


def describe_settings(config: RunConfig) -> str:
    """Describe the settings that matter most in one line, with the names of their flags."""
    described = []
    for path in DESCRIBED_SETTINGS:
        value: Any = config.to_dict()
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            described.append(f"{path} {value:g}")
    return ", ".join(described)
