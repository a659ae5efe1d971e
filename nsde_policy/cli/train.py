"""`nsde-policy train`: fit a policy to demonstrations."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import tyro

from nsde_policy.assets import SHIPPED_TASK, USUAL_OBSERVATIONS, find_demos
from nsde_policy.bounds import Fraction, SeedNumber
from nsde_policy.cli.shared.flags import FLAG_RULES
from nsde_policy.cli.shared.foreign import refuse_foreign
from nsde_policy.cli.shared.options import (
    DemosPath,
    DeviceFlag,
    EnvKwargsFlag,
    EnvName,
    MethodName,
    check_command,
    list_flags,
    parse_env_kwargs,
)
from nsde_policy.cli.shared.ranks import get_rank
from nsde_policy.encoders.keypoints.config import SMALL_ENCODER
from nsde_policy.errors import ConfigError
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.tasks import NO_TASK, TASKS, check_recorded_task, find_task, get_task, with_observations
from nsde_policy.tasks.environments import close_env
from nsde_policy.tasks.gym import open_env
from nsde_policy.tasks.training_defaults import AUTO_PRESET, CAMERA_PRESET
from nsde_policy.training.presets import (
    add_cameras,
    choose_preset,
    read_preset,
    resolve_preset,
    shorten_parts,
)

if TYPE_CHECKING:
    from nsde_policy.inference.policy import Policy
    from nsde_policy.run_directory import RunDirectory

logger = logging.getLogger(__name__)

TRAIN_ENV_HELP = "Environment of the task: a Gymnasium id (Pendulum-v1) or module:Class; the run records it."
SHORT_FLAGS = {
    "--obs-keys": "--demos.obs-keys",
    "--images": "--demos.images",
    "--images-dropout": "--demos.images-dropout",
    "--encoder": "--demos.encoder",
    "--act-key": "--demos.act-key",
    "--angles": "--demos.angles",
    "--rate": "--demos.rate-hz",
    "--resample": "--demos.resample-hz",
    "--accept-omitted-chunks": "--demos.accept-omitted-chunks",
    "--select": "--selection.select",
    "--steps": "--train.steps",
    "--batch-size": "--train.batch-size",
    "--lr": "--train.learning-rate",
    "--width": "--model.network.width",
    "--model.code-weight": "--model.feature-weight",
}
"""Short names of settings, without their group, and an earlier name."""
CHECKED_FLAGS = {f"--demos.{name}" for name in ("obs-keys", "act-key", "images", "rate-hz", "resample-hz")}
"""Settings that `Train.check` refuses sooner than a parser of all settings is made."""
HELP_ALL = "--help-all"
"""Flag that lists all settings."""
EXAMPLES = """Examples:
  nsde-policy train --preset fast                        # Push-T on a CPU
  nsde-policy train --demos my_robot --validation 0.2    # LeRobot, HDF5, zarr, …
  nsde-policy train --demos my_robot --images top wrist  # with cameras
  nsde-policy train --demos pusht.zarr --policy diffusion --steps 50000

Often changed settings: --steps, --batch-size, --lr, --width, --chunk. --help-all lists all."""


def expand_short_flags(args: Sequence[str]) -> list[str]:
    """Replace short flags by the full ones; both `--rate 20` and `--rate=20` are known."""
    parts = (arg.partition("=") for arg in args)
    return [SHORT_FLAGS.get(flag, flag) + sign + value for flag, sign, value in parts]


@dataclass(frozen=True)
class Train:
    """Fit a policy to demonstrations.

    Writes a run directory that `eval` and `Policy` load.
    """

    examples: ClassVar[str] = EXAMPLES
    uses_ranks: ClassVar[bool] = True
    """Whether torchrun may start it in several processes."""
    demos: DemosPath | None = None
    """Demonstrations of any format; default: those of the task in this package. Flags for what
    they do not record: --obs-keys, --act-key, --images, --angles, --rate. --resample HZ changes the rate."""
    policy: MethodName = "neural_sde"
    """Method; neural_sde is ours."""
    preset: str | None = None
    """Settings to start from: default, paper, fast (a CPU), with --obs pixels: pixels, pixels-fast;
    auto, the default for your own robot, measures the demonstrations; on a CPU with --images, pixels-fast;
    or the file that `tune` wrote."""
    task: str = "auto"
    """Task, such as pusht or metaworld:reach-v3; auto: what the demonstrations record, else none."""
    obs: str = USUAL_OBSERVATIONS
    """Observations: state, or pixels if the task has a camera."""
    env: Annotated[EnvName | None, tyro.conf.arg(help=TRAIN_ENV_HELP)] = None
    env_kwargs: EnvKwargsFlag = None
    out: Path | None = None
    """Run directory; default runs/TASK-METHOD-PRESET-SEED, or with the name of --demos."""
    seed: SeedNumber = 0
    """Seed of weights, batches and noise."""
    device: DeviceFlag = "auto"
    resume: bool = False
    """Continue what is in --out from its last checkpoint."""
    validation: Fraction = 0.0
    """Fraction of the episodes to hold out of training, such as 0.2, for curves and `score`."""
    scale_std: Annotated[Fraction, tyro.conf.arg(aliases=["--calibration"])] = 0.0
    """Fraction of the other episodes to hold out too, such as 0.1; σ is scaled to fit them."""
    dry_run: bool = False
    """Print the settings and do nothing else."""
    settings: tyro.conf.Suppress[tyro.conf.Fixed[tuple[str, ...]]] = ()
    """The other flags, which `run` parses: their defaults depend on the demonstrations."""

    @classmethod
    def parse(cls, args: Sequence[str], prog: str) -> Self:
        """Parse the flags, those of the settings only to refuse unknown ones; exit after a help text."""
        if args and not args[0].startswith("-"):
            raise ConfigError(f"{prog.split()[-1]} takes flags only: use --demos {args[0]}")
        refuse_foreign(args, cls, prog.split()[-1])
        if {"-h", "--help"} & {*args}:
            text = f"{getdoc(cls)}\n\n{cls.examples}"
            tyro.cli(cls, prog=prog, args=["--help"], description=text, registry=FLAG_RULES)
        given, settings = tyro.cli(
            cls,
            prog=prog,
            args=expand_short_flags(args),
            return_unknown_args=True,
            add_help=False,
            registry=FLAG_RULES,
        )
        command = replace(given, settings=tuple(settings))
        preset = given.preset or AUTO_PRESET
        is_missing = preset.endswith(".json") and not Path(preset).exists()  # `check` refuses it
        preset = "default" if preset in (AUTO_PRESET, CAMERA_PRESET) or is_missing else preset
        task = get_task(given.env or (SHIPPED_TASK if given.task == "auto" else given.task))
        config = read_preset(preset, given.policy)
        config = config or with_observations(task, given.obs).preset(preset, given.policy)
        if not {arg.partition("=")[0] for arg in settings if arg.startswith("--")} <= CHECKED_FLAGS:
            command.parse_settings(config)
        return command

    def parse_settings(self, config: RunConfig, preset: str = "") -> RunConfig:
        """Return settings with the changes of the flags; camera frames get an encoder.

        Fewer --steps shorten the training of the encoder and of plan selection in proportion. Exit after
        printing the help text, or what is wrong with the flags.
        """
        config = add_cameras(config, self._parse_demos(config.demos), small=preset == CAMERA_PRESET)
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        whole = _add_settings(type(self))
        parsed = tyro.cli(
            whole,
            default=whole(**own, config=config),
            args=["--help"] if HELP_ALL in self.settings else self.settings,  # tyro omits given flags
            prog=f"nsde-policy {type(self).__name__.lower()}",
            description=getdoc(type(self)),
            registry=FLAG_RULES,
        )
        given = {flag.partition("=")[0] for flag in self.settings}
        return shorten_parts(parsed.config, parsed.config.train.steps / config.train.steps, given)

    def _parse_demos(self, demos: DemoConfig) -> DemoConfig:
        """Return the selection of the demonstrations with the changes of the flags."""
        found, _ = tyro.cli(
            WithDemos,
            default=WithDemos(demos),
            args=self.settings,
            prog=f"nsde-policy {type(self).__name__.lower()}",
            return_unknown_args=True,
            add_help=False,
            registry=FLAG_RULES,
        )
        return found.demos

    def resolve_settings(self, task: str) -> tuple[str, RunConfig]:
        """Return the name of the preset, and the settings with the changes of the flags.

        The preset `auto` measures the demonstrations.
        """
        chosen = with_observations(get_task(task), self.obs)
        selection = self._parse_demos(chosen.training.demos)
        preset = self.preset or choose_preset(chosen, self.policy)
        if preset == AUTO_PRESET and selection.images and self.device == "cpu":
            preset = CAMERA_PRESET
        name, config = resolve_preset(
            chosen,
            preset,
            self.policy,
            demos=self.demos,
            selection=vars(selection),
            validation=self.validation,
            seed=self.seed,
            overridden=[flag.partition("=")[0].split(".")[-1].lstrip("-") for flag in self.settings],
        )
        config = self.parse_settings(config, name)
        if isinstance(encoder := config.encoder, type(SMALL_ENCODER)):
            form, batch = f"{encoder.keypoints} keypoints in {encoder.size}×{encoder.size}", encoder.train
            logger.info("encoder: %s, %d steps of %d frames", form, batch.steps, batch.batch_size)
        return name, config

    def run(self) -> None:
        """Train, draw the curves and print the run directory."""
        if self.dry_run:
            print(self.prepare()[-1].to_json())
            return
        from nsde_policy.training.curves import plot_training

        run = self.train()
        if get_rank() != 0:
            return
        picture = plot_training(run)
        print(f"trained {run.path}" + (f", curves in {picture}" if picture else ""))

    def train(self) -> "RunDirectory":
        """Train with a progress bar, and return the run directory."""
        from nsde_policy.run_directory import RunDirectory
        from nsde_policy.training.checkpoints import check_files
        from nsde_policy.training.curves import describe_overfitting
        from nsde_policy.training.train import TrainOptions, train_run

        if self.out is not None and not self.resume:
            check_files(RunDirectory(self.out), resume=False)  # before demonstrations are measured
        task, env_kwargs, preset, config = self.prepare()
        smaller = {"default": "fast", "pixels": "pixels-fast"}.get(preset)
        if smaller and self.device == "cpu":
            logger.info("preset %s is made for GPUs; on a CPU, --preset %s is much quicker", preset, smaller)
        about = task if task != NO_TASK or self.demos is None else name_store(self.demos)
        name = re.sub(r"[^\w.-]", "_", f"{about}-{self.policy}-{preset}-{self.seed}")
        run = RunDirectory(self.out or Path("runs") / name)
        trained = train_run(
            self.demos,
            config,
            run.path,
            task=task,
            env_kwargs=env_kwargs,
            seed=self.seed,
            options=TrainOptions(
                device=self.device,
                resume=self.resume,
                validation=self.validation,
                scale_std=self.scale_std,
            ),
        )
        if overfitting := describe_overfitting(trained):
            logger.warning(overfitting)
        return trained

    def prepare(self) -> tuple[str, dict[str, object], str, RunConfig]:
        """Return the task, keyword arguments of its environment, and name and settings of the preset."""
        if self.demos is None and self.obs != USUAL_OBSERVATIONS:
            raise ConfigError(
                "the demonstrations of this package have no camera frames: give others with --demos, or "
                "record some with nsde-policy collect --policy shipped --obs pixels --out demos.zarr"
            )
        task, env_kwargs = self._choose_task()
        if self.obs != USUAL_OBSERVATIONS:
            observations = with_observations(get_task(task), self.obs).training.observations[self.obs]
            env_kwargs = {**observations.env_kwargs, **env_kwargs}
        if self.env is not None or self.env_kwargs is not None:
            close_env(open_env(get_task(task), env_kwargs))  # its errors should not wait for the evaluation
        return task, env_kwargs, *self.resolve_settings(task)

    def check(self) -> None:
        """Refuse cameras and arrays that the demonstrations do not have, before torch is imported."""
        from nsde_policy.data.readers import open_source
        from nsde_policy.data.roles import find_camera, find_keys

        read_preset(self.preset, self.policy)
        given = self._parse_demos(DemoConfig())
        if self.preset == CAMERA_PRESET and self.obs == USUAL_OBSERVATIONS and not given.images:
            raise ConfigError(
                "pixels-fast is for camera frames, but no images are named: add --obs pixels or --images"
            )
        if self.demos is not None:
            with open_source(self.demos) as source:
                for camera in given.images:
                    source.open_episodes(find_camera(source, camera))
                if given.obs_keys != DemoConfig.obs_keys:
                    find_keys(source, given.obs_keys, given.act_key)
        name = find_task(self.demos).name if self.task == "auto" else self.task
        task = with_observations(get_task(self.env or name), self.obs)
        demos = self._parse_demos(task.training.demos)
        with demos.open_store(self.demos or find_demos(task.name)) as source:
            find_keys(source, demos.obs_keys, demos.act_key)
        if self.demos is not None:
            check_recorded_task(task, self.demos)

    def _choose_task(self) -> tuple[str, dict[str, object]]:
        """Return the name of the task, and the keyword arguments of its environment that the run records."""
        env_kwargs = parse_env_kwargs(self.env_kwargs)
        if self.env is not None:
            name = get_task(self.env).name
            if self.task not in ("auto", name):
                raise ConfigError(f"--task {self.task} and --env {self.env} are two tasks; leave one out")
            if self.demos is None:
                find_demos(name)
            return name, env_kwargs
        if self.task != "auto":
            return TASKS.get(self.task).name, env_kwargs
        found = find_task(self.demos)
        logger.info("%s", found.reason)
        return found.name, {**found.env_kwargs, **env_kwargs}


def name_store(path: Path) -> str:
    """Return the name of a store of demonstrations without the endings of its format."""
    return path.resolve().name.removesuffix(".zip").rpartition(".")[0] or path.resolve().name


def _add_settings(command: type[Train]) -> Any:
    """Return a command whose flags are its own and all settings of a run."""
    config = Annotated[RunConfig, tyro.conf.arg(name="")]
    return make_dataclass(
        command.__name__, [("config", config, field(kw_only=True))], bases=(command,), frozen=True
    )


@dataclass(frozen=True)
class WithDemos:
    """Flags that select demonstrations."""

    demos: DemoConfig


def train(
    demos: Path | str | None = None,
    out: Path | str | None = None,
    *,
    images: Sequence[str] = (),
    **settings: object,
) -> "Policy":
    """Train a policy on demonstrations as `nsde-policy train` does, and return it.

        policy = nsde_policy.train("my_robot", "runs/arm", images=["top", "wrist"], validation=0.2)
        print(nsde_policy.score(policy, "my_robot"))
        with policy.session() as session:
            robot.send(session.step(robot.observe()))

    Args:
        demos: Demonstrations of any format; None for those in this package.
        out: Run directory to write; by default below runs/.
        images: Names of the cameras.
        **settings: Other flags of the command: `steps=5000`, `validation=0.2`, `resume=True`,
            `policy="diffusion"`, `rate=20`, `obs_keys=["qpos"]`; with a group as `**{"model.noise": 0.5}`.

    Raises:
        NsdePolicyError: If demonstrations or settings are not valid; the message says what to change.
    """
    from nsde_policy.cli.main import show_log
    from nsde_policy.inference.policy import Policy

    show_log()
    try:
        command = Train.parse(
            list_flags({"demos": demos, "out": out, "images": images, **settings}), "nsde_policy.train"
        )
    except SystemExit:  # what is wrong has been printed
        names = ", ".join(settings) or "these arguments"
        raise ConfigError(f"train cannot use {names}: `nsde-policy train --help-all` lists all") from None
    return Policy.from_pretrained(check_command(command).train().path)
