"""Experiments: which trainings and rollouts a file of benchmarks/experiments declares.

tasks = ["pusht"]                   # or a table: settings of each task, which override those below
demos = "pusht_cchi_v7_replay.zarr" # in the folder --demos; without it, the demonstrations of the package
episodes = 200                      # rolled out per row; seeds start at 100000
table = "metaworld_camera"          # one table of all tasks, in place of one per task
trained_on = [3, 10]                # train on the first 3 and on the first 10 demonstrations; default: all
examples = 12.8e6                   # training examples of each method; without it, the steps of the presets

[trainings.NAME]                    # all optional: method (default: the name), preset, seeds, tasks, change
seeds = 3                           # training seeds: how many, or a list of them
tasks = "few"                       # list of this file with the tasks; default: tasks
obs = "state"                       # observations, if they differ from those of the experiment
encoder = "resnet"                  # encoder of camera frames, in place of the preset's
change.train.steps = 25000          # settings that differ from the preset
large = true                        # trained alone on the device
encoder_of = "NAME"                 # uses the encoder of camera frames of another training, which comes first

[[rollouts]]                        # ways to sample a training; without any, each is sampled as trained
trainings = ["diffusion"]
detail = "DDIM-10"                  # added to the name of the row
sampling = ["scheduler=ddim", "steps=10"]
select = "none"                     # rule of plan selection; default: the one that training chose

[[variations]]                      # rows of the first training seed under other settings
part = "push"
rows = ["neural_sde"]
settings = [{ push = 50.0 }, { push = 100.0 }]
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

from nsde_policy.assets import USUAL_OBSERVATIONS, find_demos
from nsde_policy.errors import ConfigError
from nsde_policy.eval.rollouts.disturbances import CameraCondition, Condition
from nsde_policy.run_config import RunConfig
from nsde_policy.selection.rule import Choice
from nsde_policy.tasks import Task, get_task, with_observations
from nsde_policy.training.dataset import TrainingSet
from nsde_policy.training.presets import adapt_to_features, add_cameras, is_adapted, resolve_preset

FOLDER = Path(__file__).with_name("experiments")
MAIN = "main"
"""Part of rows without variations."""
SMOKE = {"steps": 3, "demonstrations": 5, "episodes": 1, "periods": 12}
"""Sizes of `--smoke`: training steps, demonstrations, rollouts per row, control periods per rollout."""


def list_experiments() -> list[str]:
    """Return the names of all experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_experiment(name: str) -> dict[str, Any]:
    """Read the file of an experiment."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class TaskSetting:
    """A task of an experiment, with its demonstrations and budget."""

    name: str
    demos: str = ""
    """Store in the folder of demonstrations; empty for the one in the package, or that of an expert."""
    episodes: int = 100
    examples: float = 0.0
    expert: str = ""
    """Scripted expert, `module:Class`, that makes the store if it does not exist."""
    demonstrations: int = 50
    """Successful episodes of the expert."""
    only_success: bool = True
    obs: str = USUAL_OBSERVATIONS
    """Observations such as "pixels", which the store of an expert holds in addition to the usual ones."""

    def find_store(self, folder: Path | None) -> Path:
        """Return the path of the demonstrations."""
        demos = self.demos or (f"{self.name.rpartition(':')[2]}.zarr" if self.expert else "")
        if not demos:
            return find_demos(self.name)
        if folder is None:
            raise ConfigError(f"{self.name} needs {demos}: give the folder that holds it with --demos")
        return folder / demos


@dataclass(frozen=True)
class Training:
    """One training of an experiment."""

    task: TaskSetting
    row: str
    """Name of its rows."""
    method: str
    seed: int
    preset: str | None = None
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)
    large: bool = False
    examples: float | None = None
    """Training examples; None for those of the task, 0 for the steps of the preset."""
    encoder_of: str = ""
    """Row whose encoder of camera frames it uses; empty to train its own."""
    obs: str = ""
    """Observations of the policy; empty for those of the task."""
    encoder: str = ""
    """Encoder of camera frames; empty for the preset's."""
    demonstrations: int = 0
    """Number of demonstrations, from the first of the store on; 0 for all."""
    smoke: bool = False

    @property
    def observations(self) -> str:
        """Name of the observations of the policy."""
        return self.obs or self.task.obs

    def make_task(self) -> Task:
        """Return the task, with the observations of the policy."""
        return with_observations(get_task(self.task.name), self.observations)

    @property
    def folder(self) -> str:
        """Folder below the runs of the suite."""
        demonstrations = f", {self.demonstrations} demonstrations" if self.demonstrations else ""
        name = make_name(f"{self.row}{demonstrations}-{self.seed}")
        return f"{make_name(self.task.name)}/{name}"

    def make_config(self, demos: Path) -> RunConfig:
        """Return the settings: those of the preset, changed as the file says."""
        task = self.make_task()
        used = replace(task.training.demos, episodes=self.demonstrations)
        _, config = resolve_preset(task, self.preset, self.method, demos=demos, demo_settings=used)
        return self._change(config)

    def find_adaptation(self, config: RunConfig) -> Callable[[TrainingSet], RunConfig] | None:
        """Return what chooses the settings again by features of camera frames, if the preset does that."""
        task = self.make_task()
        if not is_adapted(config, task, self.preset):
            return None
        return lambda data: self._change(adapt_to_features(config, task, self.preset, data))

    def _change(self, config: RunConfig) -> RunConfig:
        """Return settings of a preset, changed as the file says."""
        config = config.replace_parts(demos={"episodes": self.demonstrations})
        if self.encoder:
            config = add_cameras(config, replace(config.demos, encoder=self.encoder))
        config = change_config(config, self.change)
        steps = config.train.steps
        examples = self.task.examples if self.examples is None else self.examples
        if examples and steps > 1:
            steps = max(round(examples / config.train.batch_size), 1)
        if not self.smoke:
            return config.replace_parts(train={"steps": steps})
        tiny = {"steps": min(steps, SMOKE["steps"]), "batch_size": min(config.train.batch_size, 32)}
        if config.demos.images:
            encoder: dict[str, Any] = {"occlusion_steps": 2 * bool(config.encoder.occlusion_steps)}
            if hasattr(config.encoder, "train"):
                encoder["train"] = replace(config.encoder.train, **tiny)
            few = config.demos.episodes or SMOKE["demonstrations"]
            config = config.replace_parts(encoder=encoder, demos={"episodes": few})
        selection = {"train": replace(config.selection.train, **tiny)}
        return config.replace_parts(train=tiny, selection=selection)


@dataclass(frozen=True)
class Rollouts:
    """One row of results: a training, how it is sampled and what disturbs it."""

    training: Training
    part: str = MAIN
    detail: str = ""
    sampling: tuple[str, ...] = ()
    chunk: int | None = None
    condition: Condition = field(default_factory=Condition)
    camera: CameraCondition = field(default_factory=CameraCondition)
    select: Choice = "auto"

    @property
    def name(self) -> str:
        """Name of the row."""
        return ", ".join(filter(None, (self.training.row, self.detail)))

    @property
    def file(self) -> str:
        """Name of the file of its entry."""
        disturbed = [f"{key}={value}" for key, value in self.condition.to_dict().items() if value]
        chunk = [f"chunk={self.chunk}"] if self.chunk else []
        parts = [Path(self.training.folder).name, self.detail, *chunk, *disturbed]
        return make_name(" ".join(filter(None, parts))) + ".json"


def list_trainings(values: Mapping[str, Any], *, smoke: bool = False) -> Iterator[Training]:
    """List every training of an experiment: all tasks and seeds."""
    shared = {key: values[key] for key in TaskSetting.__dataclass_fields__ if key in values}
    tasks, counts = values["tasks"], values.get("trained_on", [0])
    if smoke:
        counts = [count for count in counts if count <= SMOKE["demonstrations"]]
    if not isinstance(tasks, dict):
        tasks = {name: {} for name in tasks}
    for task, own in tasks.items():
        setting = TaskSetting(**{"name": task, **shared, **own})
        for name, each in values["trainings"].items():
            settings = {"row": name, "method": name, **each}
            seeds = settings.pop("seeds", 1)
            numbers = range(seeds) if isinstance(seeds, int) else seeds
            if task not in values[settings.pop("tasks", "tasks")]:
                continue
            for count, seed in product(counts, numbers[:1] if smoke else numbers):
                yield Training(setting, seed=seed, smoke=smoke, demonstrations=count, **settings)


def list_rollouts(values: Mapping[str, Any], *, smoke: bool = False) -> list[Rollouts]:
    """List every row of an experiment."""
    ways = values.get("rollouts", [{}])
    rows = [
        Rollouts(
            training,
            detail=way.get("detail", ""),
            sampling=tuple(way.get("sampling", ())),
            select=way.get("select", "auto"),
        )
        for training in list_trainings(values, smoke=smoke)
        for way in ways
        if any(fnmatch(training.row, pattern) for pattern in way.get("trainings", ["*"]))
    ]
    varied = []
    for variation in values.get("variations", ()):
        for setting in variation["settings"]:
            for row in rows:
                if row.training.seed in variation.get("seeds", [0]) and row.name in variation["rows"]:
                    varied.append(_vary(row, variation["part"], setting))
    return rows + varied


def _vary(row: Rollouts, part: str, setting: Mapping[str, Any]) -> Rollouts:
    disturbances = {key: value for key, value in setting.items() if key in Condition.__dataclass_fields__}
    return replace(
        row,
        part=part,
        detail=", ".join(filter(None, (row.detail, setting.get("detail", "")))),
        sampling=(*row.sampling, *setting.get("sampling", ())),
        chunk=setting.get("chunk"),
        condition=Condition(**disturbances),
        camera=CameraCondition(**setting.get("camera", {})),
    )


def change_config(config: Any, change: Mapping[str, Any]) -> Any:
    """Return settings with some changed, at any depth."""
    new = {}
    for key, value in change.items():
        if isinstance(value, Mapping):
            new[key] = change_config(getattr(config, key), value)
        else:
            new[key] = tuple(value) if isinstance(value, list) else value
    return replace(config, **new)


def make_name(text: str) -> str:
    """Return a name for files: without spaces, slashes and commas."""
    return text.replace(", ", "_").replace(" ", "_").replace("/", "_").replace("−", "no")
