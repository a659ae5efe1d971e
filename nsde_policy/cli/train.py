"""`nsde-policy train`: fit a policy to demonstrations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from nsde_policy.methods.registry import METHODS
from nsde_policy.run_config import RunConfig
from nsde_policy.tasks import TASKS, get_task

DEFAULT_POLICY, DEFAULT_TASK = "neural_sde", "pusht"
if TYPE_CHECKING:
    MethodName = TaskName = str
else:
    MethodName, TaskName = Literal[*METHODS.names()], Literal[*TASKS.names()]


@dataclass(frozen=True)
class Train:
    """Fit a policy to demonstrations; writes a run directory that `eval` and your robot load."""

    demos: Path | None = None
    """Zarr directory of demonstrations, or a zip of one; without it, those embedded in the package,
    episodes of its own policy."""
    policy: MethodName = DEFAULT_POLICY
    """The method; the flags below are those of the method and preset that are named."""
    preset: str = "default"
    """Settings to start from: default (the best there is), paper (the paper's own), fast (what a CPU reaches
    in five minutes). Baselines have default, fast and, where they come in several sizes, more."""
    task: TaskName = DEFAULT_TASK
    """What is known beyond the demonstrations; `none` for a robot of your own."""
    out: Path | None = None
    """Run directory; runs/TASK-PRESET-SEED by default, runs/TASK-POLICY-PRESET-SEED for baselines."""
    seed: int = 0
    """Fixes weights, batches and noise."""
    device: str = "auto"
    """cpu, cuda, cuda:1 …; auto takes a GPU where there is one."""
    resume: bool = False
    """Continue the run in --out where it was saved last."""
    eval_every: int = 0
    """Steps between quick evaluations, 20 episodes each; 0 for none."""
    tensorboard: bool = False
    """Write the losses for TensorBoard too, into the run directory."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: get_task(DEFAULT_TASK).preset("default")
    )

    @classmethod
    def with_preset_of(cls, args: Sequence[str]) -> "Train":
        """Defaults for a command line: those of the preset and the task it names."""
        if args[:1] != ["train"]:
            return cls()
        preset, task = _value(args, "--preset", "default"), _value(args, "--task", DEFAULT_TASK)
        policy = _value(args, "--policy", DEFAULT_POLICY)
        if policy not in METHODS.names() or task not in TASKS.names():
            return cls()  # parsing the same flags will say what is wrong with them
        return cls(config=get_task(task).preset(preset, policy))

    def run(self) -> None:
        """Train, plot, and say where the run is."""
        from nsde_policy.errors import ConfigError
        from nsde_policy.eval.evaluate import evaluate_quickly
        from nsde_policy.training.progress import plot_training, train

        if self.eval_every and get_task(self.task).env_id is None:
            raise ConfigError(
                f"the task {self.task!r} has no environment to evaluate in; leave out --eval-every"
            )
        run = train(
            self.demos,
            self.config,
            self.out or self._run_directory(),
            task=self.task,
            seed=self.seed,
            device=self.device,
            resume=self.resume,
            eval_every=self.eval_every,
            evaluate=evaluate_quickly,
            tensorboard=self.tensorboard,
        )
        picture = plot_training(run)
        print(f"trained {run.path}" + (f", curves in {picture}" if picture else ""))

    def _run_directory(self) -> Path:
        kind = self.preset if self.policy == DEFAULT_POLICY else f"{self.policy}-{self.preset}"
        return Path("runs") / f"{self.task}-{kind}-{self.seed}"


def _value(args: Sequence[str], flag: str, default: str) -> str:
    """What a flag is set to on the command line, before it is parsed."""
    for i, arg in enumerate(args):
        if arg.startswith(f"{flag}="):
            return arg.split("=", 1)[1]
        if arg == flag and i + 1 < len(args):
            return args[i + 1]
    return default
