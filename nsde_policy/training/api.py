"""Train with a preset: what `nsde_policy.train` and the command `train` call."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsde_policy.data.convert import check_output
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import CheckpointError
from nsde_policy.log import show_log
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.tasks import NO_TASK

from .checkpoints import check_files
from .curves import describe_overfitting
from .presets import TrainingRequest, expand_names
from .recorder import Monitor
from .train import TrainOptions, pick_device, train_run

logger = logging.getLogger(__name__)

SMALLER_PRESETS = {"default": "fast", "pixels": "pixels-fast"}
"""Presets that are made for GPUs, and those for a CPU."""


def train(
    demos: Path | str | Demonstrations | None = None,
    config: RunConfig | None = None,
    *,
    preset: str | None = None,
    out: Path | str | None = None,
    policy: str = "neural_sde",
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    validation: float = 0.0,
    scale_std: float = 0.0,
    task: str = "auto",
    env: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    obs: str = "state",
    monitor: Monitor | None = None,
    **settings: Any,
) -> Policy:
    """Train a policy on demonstrations as `nsde-policy train` does, and return it.

        policy = nsde_policy.train("my_robot", out="runs/arm", images=["top", "wrist"], validation=0.2)
        print(nsde_policy.score(policy, "my_robot"))
        with policy.session() as session:
            robot.send(session.step(robot.observe()))

    Args:
        demos: Demonstrations, or a store of any format; None for those in this package.
        config: Settings of the run; None for those of the preset.
        preset: Name or file of a preset; None for the default of the task.
        out: Run directory to write; by default below runs/.
        policy: Name of the method.
        seed: Seed of weights, batches and noise.
        device: Torch device; "auto" uses a GPU if there is one.
        resume: Continue what is in `out` from its last checkpoint.
        validation: Fraction of the episodes to hold out of training.
        scale_std: Fraction of the other episodes to hold out too; σ is scaled to fit them.
        task: Name of the task; "auto" for what the demonstrations record.
        env: Environment of the task, a Gymnasium id or module:Class.
        env_kwargs: Keyword arguments of the environment.
        obs: Observations of the task.
        monitor: Called at every record of the losses.
        **settings: Other settings, with short names as on the command line (`steps=5000`, `rate=20`,
            `images=["top"]`, `obs_keys=["qpos"]`) or with their group: `**{"model.noise": 0.5}`.

    Raises:
        NsdePolicyError: If demonstrations or settings are not valid; the message says what to change.
    """
    show_log()
    request = TrainingRequest(
        demos=Path(demos) if isinstance(demos, str) else demos,
        preset=preset if config is None else config,
        method=policy,
        settings=expand_names(settings),
        task=task,
        obs=obs,
        env=env,
        env_kwargs=env_kwargs,
        seed=seed,
        validation=validation,
        device=pick_device(device),
    )
    out = None if out is None else Path(out)
    run = train_request(request, out, resume=resume, scale_std=scale_std, monitor=monitor)
    return Policy.from_pretrained(run.path)


def train_request(
    request: TrainingRequest,
    out: Path | None,
    *,
    resume: bool,
    scale_std: float,
    monitor: Monitor | None = None,
) -> RunDirectory:
    """Train what was asked for, by default into a folder below runs/."""
    if out is not None and not resume:
        check_files(RunDirectory(out), resume=False)  # before demonstrations are measured
    task, env_kwargs, preset, config = request.prepare()
    smaller = SMALLER_PRESETS.get(preset)
    if smaller and request.device == "cpu":
        logger.info("preset %s is made for GPUs; on a CPU, --preset %s is much quicker", preset, smaller)
    if out is None:
        about = task if task != NO_TASK or request.demos is None else name_demos(request.demos)
        name = f"{about}-{config.method}-{preset}-{request.seed}"
        out = Path("runs") / re.sub(r"[^\w.-]", "_", name)
        if isinstance(request.demos, Path) and not resume:
            refuse_other_store(RunDirectory(out), request.demos)
    if isinstance(request.demos, Path):
        check_output(request.demos, out)
    options = TrainOptions(request.device, resume=resume, validation=request.validation, scale_std=scale_std)
    run = train_run(
        request.demos,
        config,
        out,
        task=task,
        env_kwargs=env_kwargs,
        seed=request.seed,
        monitor=monitor,
        options=options,
    )
    if overfitting := describe_overfitting(run):
        logger.warning(overfitting)
    return run


def refuse_other_store(run: RunDirectory, demos: Path) -> None:
    """Raise `CheckpointError` if a run is of another store, which has the same name in another folder."""
    if run.config.exists() and Path(run.read_record().demos.source).resolve() != demos.resolve():
        source = run.read_record().demos.source
        raise CheckpointError(f"{run.path} holds a run of {source}: give the run of {demos} another --out")


def name_demos(demos: Path | Demonstrations) -> str:
    """Return the name of demonstrations, or of their store without the endings of its format."""
    path = Path(demos.source) if isinstance(demos, Demonstrations) else demos
    return path.resolve().name.removesuffix(".zip").rpartition(".")[0] or path.resolve().name
