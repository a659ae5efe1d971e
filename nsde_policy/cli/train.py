"""`nsde-policy train`: fit a policy to demonstrations."""

import argparse
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from nsde_policy.assets import SHIPPED_TASK, USUAL_OBSERVATIONS, find_demos
from nsde_policy.bounds import Natural, SeedNumber
from nsde_policy.cli.options import (
    DeviceFlag,
    EnvKwargsFlag,
    MethodName,
    parse_env_kwargs,
)
from nsde_policy.encoders.registry import ENCODERS, get_encoder
from nsde_policy.errors import ConfigError, DemoError, NsdePolicyError
from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import TASKS, find_task, get_task, with_env_kwargs, with_observations
from nsde_policy.tasks.gym import close_env, open_env
from nsde_policy.training.presets import choose_preset, resolve_preset

logger = logging.getLogger(__name__)

TRAIN_ENV_HELP = "Environment of the task: a Gymnasium id (Pendulum-v1) or module:Class; the run records it."
CAMERA_ENCODER = "keypoints"
"""Encoder of camera frames if --images names some and no other encoder is given."""
SHORT_FLAGS = {
    "--obs-keys": "--demos.obs-keys",
    "--images": "--demos.images",
    "--encoder": "--demos.encoder",
    "--act-key": "--demos.act-key",
    "--angles": "--demos.angles",
    "--rate": "--demos.rate-hz",
    "--accept-omitted-chunks": "--demos.accept-omitted-chunks",
}
"""Flags that describe a store, without the name of their group."""


def expand_short_flags(args: Sequence[str]) -> list[str]:
    """Replace short flags by the full ones; both `--rate 20` and `--rate=20` are known."""
    parts = (arg.partition("=") for arg in args)
    return [SHORT_FLAGS.get(flag, flag) + sign + value for flag, sign, value in parts]


@dataclass(frozen=True)
class Train:
    """Fit a policy to demonstrations; writes a run directory that `eval` and `Policy` load."""

    demos: Path | None = None
    """Demonstrations; default: those of the task in this package. --obs-keys, --act-key,
    --angles and --rate say what the store holds: short for the flags of `demos` below."""
    policy: MethodName = "neural_sde"
    """Method; the flags below are those of this method, with the values of --preset."""
    preset: str | None = None
    """Settings to start from: default (best results), paper (as published), fast (minutes on a CPU);
    with --obs pixels: pixels (a GPU), pixels-fast (a CPU), fast (a CPU, with a smaller policy).
    Baselines have default, fast and, if they come in several sizes, more. auto derives settings from the
    demonstrations. Default: `default` for tasks with demonstrations in this package, else auto."""
    task: str = "auto"
    """Task of the demonstrations, such as pusht, adroit-door or metaworld:reach-v3; auto: what their store
    records, else none; `none` for your own robot."""
    obs: str = USUAL_OBSERVATIONS
    """Observations: state, or pixels for camera frames if the task has them. Cameras of your own robot:
    --images."""
    env: Annotated[str | None, tyro.conf.arg(help=TRAIN_ENV_HELP)] = None
    env_kwargs: EnvKwargsFlag = None
    out: Path | None = None
    """Run directory; default runs/TASK-METHOD-PRESET-SEED."""
    seed: SeedNumber = 0
    """Seed of weights, batches and noise."""
    device: DeviceFlag = "auto"
    resume: bool = False
    """Continue the run in --out from its last checkpoint."""
    eval_every: Natural = 0
    """Steps between quick evaluations of 20 episodes in the environment of the task, and one at the end;
    0 for none."""
    validation: float = 0.0
    """Fraction of the episodes to hold out of training, such as 0.1; curves show the losses on them, and
    `eval --demos` with the same store scores them."""
    scale_std: Annotated[float, tyro.conf.arg(aliases=["--calibration"])] = 0.0
    """Fraction of the other episodes to hold out of training as well, such as 0.1; σ is scaled to fit them
    afterwards, one factor per dimension."""
    tensorboard: bool = False
    """Write the losses for TensorBoard into the run directory."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: get_task(SHIPPED_TASK).preset("default")
    )

    @classmethod
    def from_preset(cls, args: Sequence[str]) -> "Train":
        """Return the defaults for a command line: those of the method, preset and task that it names."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for flag in ("policy", "preset", "task", "env", "demos", "obs"):
            parser.add_argument(f"--{flag}", nargs="?", default=getattr(cls, flag))
        given, _ = parser.parse_known_args(args)
        if given.policy not in METHODS.names():
            return cls()  # tyro reports the invalid flag
        demos = Path(given.demos) if given.demos and not {"-h", "--help"} & {*args} else None
        try:
            if given.env is not None:
                task = get_task(given.env).name
            else:
                task = find_task(demos).name if given.task == "auto" else TASKS.get(given.task).name
        except NsdePolicyError:  # reported by `run`, after the other flags have been checked
            task = SHIPPED_TASK
        try:
            selection = _parse_selection(args)
            if selection.get("rate_hz") == 0:
                raise ConfigError("--rate is 0, expected frames per second; leave it out to use the store's")
            cameras = {name: selection.pop(name) for name in ("images", "encoder") if name in selection}
            split = {name: selection.pop(name) for name in ("validation", "seed") if name in selection}
            _, config = resolve_preset(
                with_observations(get_task(task), given.obs),
                given.preset,
                given.policy,
                demos=demos,
                selection=selection,
                overridden=[arg.partition("=")[0].split(".")[-1].lstrip("-") for arg in args],
                **split,
            )
            config = add_cameras(config, **cameras) if cameras else config
        except DemoError:  # likewise
            config = with_observations(get_task(task), given.obs).preset("default", given.policy)
        return cls(config=config)

    def run(self) -> None:
        """Train, draw the curves and print the run directory."""
        from nsde_policy.eval.evaluate import evaluate_quickly
        from nsde_policy.training.progress import plot_training, train

        if self.demos is None and self.obs != USUAL_OBSERVATIONS:
            raise ConfigError(
                "the demonstrations of this package have no camera frames: give others with --demos, or "
                "record some with nsde-policy collect --policy shipped --obs pixels --out demos.zarr"
            )
        task, env_kwargs = self._choose_task()
        chosen = with_observations(get_task(task), self.obs)
        if self.obs != USUAL_OBSERVATIONS:
            env_kwargs = {**chosen.training.observations[self.obs].env_kwargs, **env_kwargs}
        if self.eval_every and get_task(task).env_id is None:
            raise ConfigError(
                f"the task {task!r} has no environment to evaluate in; give one with --env, or leave out "
                "--eval-every"
            )
        if self.eval_every or self.env is not None or self.env_kwargs is not None:
            close_env(open_env(get_task(task), env_kwargs))  # its errors should not wait for the evaluation
        preset = self.preset or choose_preset(chosen, self.policy)
        name = re.sub(r"[^\w.-]", "_", f"{task}-{self.policy}-{preset}-{self.seed}")
        run = train(
            self.demos,
            self.config,
            self.out or Path("runs") / name,
            task=task,
            env_kwargs=env_kwargs,
            seed=self.seed,
            device=self.device,
            resume=self.resume,
            eval_every=self.eval_every,
            evaluate=partial(evaluate_quickly, task=with_env_kwargs(get_task(task), env_kwargs)),
            tensorboard=self.tensorboard,
            validation=self.validation,
            scale_std=self.scale_std,
        )
        picture = plot_training(run)
        print(f"trained {run.path}" + (f", curves in {picture}" if picture else ""))

    def _choose_task(self) -> tuple[str, dict[str, Any]]:
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


def add_cameras(config: RunConfig, images: tuple[str, ...] = (), encoder: str = "") -> RunConfig:
    """Return the settings with these cameras and their encoder, by default keypoints, with its settings."""
    images = images or config.demos.images
    name = encoder or (config.demos.encoder if config.demos.images else CAMERA_ENCODER if images else "")
    if not name or name not in ENCODERS.names():
        return config  # tyro reports the invalid flag
    chosen = get_encoder(name).config
    settings = config.encoder if isinstance(config.encoder, chosen) else chosen()
    return replace(config, demos=replace(config.demos, images=images, encoder=name), encoder=settings)


def _parse_selection(args: Sequence[str]) -> dict[str, Any]:
    """Parse the flags that select demonstrations, as far as the statistics of `auto` depend on them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--obs-keys", "--demos.obs-keys", nargs="*", dest="obs_keys")
    parser.add_argument("--act-key", "--demos.act-key", dest="act_key")
    parser.add_argument("--angles", "--demos.angles", nargs="*", type=int, dest="angles")
    parser.add_argument("--rate", "--demos.rate-hz", type=float, dest="rate_hz")
    parser.add_argument(
        "--demos.accept-omitted-chunks", action="store_true", default=None, dest="accept_omitted_chunks"
    )
    parser.add_argument("--images", "--demos.images", nargs="*", dest="images")
    parser.add_argument("--demos.encoder", dest="encoder")
    parser.add_argument("--demos.episodes", type=int, dest="episodes")
    parser.add_argument("--validation", type=float)
    parser.add_argument("--seed", type=int)
    try:
        given, _ = parser.parse_known_args(args)
    except argparse.ArgumentError:
        return {}  # tyro reports the invalid flag
    return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(given).items() if v is not None}
