"""`nsde-policy train`: fit a policy to demonstrations."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import reduce
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import tyro

from nsde_policy.assets import SHIPPED_TASK, USUAL_OBSERVATIONS
from nsde_policy.bounds import Fraction, SeedNumber
from nsde_policy.errors import ConfigError
from nsde_policy.ranks import get_launched_rank
from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import get_task, with_observations
from nsde_policy.tasks.training_defaults import AUTO_PRESET, CAMERA_PRESET
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.presets import (
    DEFAULT_METHOD,
    SHORT_NAMES,
    ResolvedTraining,
    TrainingRequest,
    add_cameras,
    read_preset,
)

from .shared.foreign import refuse_foreign
from .shared.options import (
    DemosPath,
    DeviceCommand,
    DeviceFlag,
    EnvKwargsFlag,
    MethodName,
    parse_env_kwargs,
)

SHORT_FLAGS = {
    f"--{name.replace('_', '-')}": f"--{path.replace('_', '-')}" for name, path in SHORT_NAMES.items()
}
"""Short flags of settings, without their group."""
HELP_ALL = "--help-all"
"""Flag that lists all settings."""
EXAMPLES = """Examples:
  nsde-policy train --preset fast                        # Push-T on a CPU
  nsde-policy train --demos my_robot --validation 0.2    # LeRobot, HDF5, zarr, …
  nsde-policy train --demos my_robot --images top wrist  # with cameras
  nsde-policy train --preset runs/my_robot               # the same again, on all episodes
  nsde-policy train --demos pusht.zarr.zip --policy diffusion --steps 50000

Often changed settings: --steps, --batch-size, --lr, --width, --chunk. --help-all lists all."""


def expand_short_flags(args: Sequence[str]) -> list[str]:
    """Replace short flags by the full ones; both `--rate 20` and `--rate=20` are known."""
    parts = (arg.partition("=") for arg in args)
    return [SHORT_FLAGS.get(flag, flag) + sign + value for flag, sign, value in parts]


@dataclass(frozen=True)
class TrainingCommand(DeviceCommand):
    """A command that trains policies: flags of demonstrations and task, and the flags of all settings."""

    examples: ClassVar[str]
    demos: DemosPath | None = None
    """Demonstrations of any format; default: those of the task in this package, or of the run in --preset.
    Flags for what they do not record: --obs-keys, --act-key, --images, --angles, --rate. --resample HZ
    changes the rate."""
    policy: MethodName | None = None
    """Method; default: neural_sde, which is ours, or the method of the run in --preset."""
    preset: str | None = None
    """Settings to start from: default, paper, fast (a CPU), with --obs pixels: pixels, pixels-fast;
    auto, the default for your own robot, measures the demonstrations; on a CPU with --images, pixels-fast;
    the file that `tune` wrote; or a run, such as runs/arm, to repeat it on all episodes."""
    task: str = "auto"
    """Task, such as pusht or metaworld:reach-v3; auto: what the demonstrations record, else none."""
    obs: str = USUAL_OBSERVATIONS
    """Observations: state, or pixels if the task has a camera."""
    env: str | None = None
    """Environment of the task: a Gymnasium id (Pendulum-v1) or module:Class; the run records it."""
    env_kwargs: EnvKwargsFlag = None
    seed: SeedNumber = 0
    """Seed of weights, batches and noise."""
    device: DeviceFlag = "auto"
    validation: Fraction = 0.0
    """Fraction of the episodes to hold out of training, such as 0.2, for curves, `score` and σ."""
    dry_run: bool = False
    """Print the settings and do nothing else."""
    settings: tyro.conf.Suppress[tyro.conf.Fixed[Mapping[str, Any]]] = field(default_factory=dict)
    """Values of the other flags by the path of their setting, such as train.steps."""

    @classmethod
    def parse(cls, args: Sequence[str], prog: str) -> Self:
        """Parse the flags; exit after a help text, or after saying what is wrong with them."""
        if args and not args[0].startswith("-"):
            raise ConfigError(f"{prog.split()[-1]} takes flags only: use --demos {args[0]}")
        refuse_foreign(args, cls, prog.split()[-1])
        if {"-h", "--help"} & {*args}:
            text = f"{getdoc(cls)}\n\n{cls.examples}"
            tyro.cli(cls, prog=prog, args=["--help"], description=text)
        command, flags = tyro.cli(
            cls,
            prog=prog,
            args=expand_short_flags(args),
            return_unknown_args=True,
            add_help=False,
        )
        return replace(command, settings=_parse_settings(command, flags))

    def resolve(self) -> ResolvedTraining:
        """Return the task, keyword arguments of its environment, and name and settings of the preset."""
        return self._make_request().resolve()

    def _make_request(self, *, resume: bool = False) -> TrainingRequest:
        return TrainingRequest(
            demos=self.demos,
            preset=self.preset,
            method=self.policy,
            settings=self.settings,
            task=self.task,
            obs=self.obs,
            env=self.env,
            env_kwargs=None if self.env_kwargs is None else parse_env_kwargs(self.env_kwargs),
            options=TrainOptions(
                seed=self.seed,
                device=self.device,
                resume=resume,
                validation=self.validation,
            ),
        )

    def check(self) -> None:
        """Refuse a run or a file of settings that is damaged or of another method."""
        if self.preset is not None:
            read_preset(self.preset, self.policy)

    def run(self) -> None:
        """Do what the command is for, or print the settings with --dry-run."""
        if self.dry_run:
            print(self.resolve().config.to_json())
        else:
            self.start()

    @abc.abstractmethod
    def start(self) -> None:
        """Do what --dry-run leaves out."""


@dataclass(frozen=True)
class Train(TrainingCommand):
    """Fit a policy to demonstrations.

    Writes a run directory that `eval` and `Policy` load.
    """

    examples: ClassVar[str] = EXAMPLES
    uses_ranks: ClassVar[bool] = True
    out: Path | None = None
    """Run directory; default runs/TASK-METHOD-PRESET-SEED, or with the name of --demos."""
    resume: bool = False
    """Continue what is in --out from its last checkpoint."""

    def start(self) -> None:
        """Train with a progress bar, draw the curves and print the run directory."""
        from nsde_policy.training.curves import plot_training
        from nsde_policy.training.train import train_into_run_folder

        run = train_into_run_folder(self._make_request(resume=self.resume), self.out)
        if get_launched_rank() != 0:
            return
        picture = plot_training(run)
        print(f"trained {run.path}" + (f", curves in {picture}" if picture else ""))


@dataclass(frozen=True)
class CameraFlags:
    """Settings that decide which other settings there are."""

    images: Annotated[tuple[str, ...], tyro.conf.arg(name="demos.images")]
    encoder: Annotated[str, tyro.conf.arg(name="demos.encoder")]


def _parse_settings(command: TrainingCommand, flags: Sequence[str]) -> dict[str, Any]:
    """Return the values of flags of settings by the path of their setting; exit after a help text.

    The flags that there are depend on the method and on the encoder, so they are parsed twice: first those
    that name the encoder, then all, into a dataclass that has its settings. tyro does not say which flags
    were given, so the values are then read from the parsed settings by the names of the flags.
    """
    if not flags:
        return {}
    config = _find_defaults(command)
    cameras, _ = tyro.cli(
        CameraFlags,
        default=CameraFlags(config.demos.images, config.demos.encoder),
        args=flags,
        return_unknown_args=True,
        add_help=False,
    )
    config = add_cameras(config, replace(config.demos, images=cameras.images, encoder=cameras.encoder))
    whole: Any = make_dataclass(
        type(command).__name__,
        [("config", Annotated[RunConfig, tyro.conf.arg(name="")], field(kw_only=True))],
        bases=(type(command),),
        frozen=True,
    )
    parsed = tyro.cli(
        whole,
        default=whole(config=config),
        args=["--help"] if HELP_ALL in flags else flags,  # tyro omits given flags
        prog=f"nsde-policy {type(command).__name__.lower()}",
        description=getdoc(command),
    )
    values = {}
    for flag in (word.partition("=")[0] for word in flags if word.startswith("--")):
        *groups, last = flag.removeprefix("--").replace("-", "_").split(".")
        part = reduce(getattr, groups, parsed.config)
        last = last if hasattr(part, last) else last.removeprefix("no_")
        values[".".join([*groups, last])] = getattr(part, last)
    return values


def _find_defaults(command: TrainingCommand) -> RunConfig:
    """Return the settings to start from; what `auto` measures is not known yet."""
    preset, name = command.preset or AUTO_PRESET, command.env or command.task
    if preset in (AUTO_PRESET, CAMERA_PRESET):
        preset = "default"
    task = with_observations(get_task(SHIPPED_TASK if name == "auto" else name), command.obs)
    return read_preset(preset, command.policy) or task.preset(preset, command.policy or DEFAULT_METHOD)
