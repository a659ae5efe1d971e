"""Run a command as a SLURM job, through submitit; a job that is stopped early is queued again and resumes."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from nsde_policy.cli.shared.options import check_command, list_flags
from nsde_policy.cli.shared.ranks import is_launched
from nsde_policy.errors import CheckpointError, ConfigError, import_optional

if TYPE_CHECKING:
    from submitit import SlurmExecutor
    from submitit.core.utils import DelayedSubmission

    from nsde_policy.cli.train import Train

SlurmFlag = Annotated[str | None, arg(help="Submit a job to this SLURM partition instead; needs --out.")]
SlurmArgsFlag = Annotated[
    tuple[str, ...], arg(help="Options of sbatch: time=1440 (minutes), gpus_per_node=1, cpus_per_task=8.")
]
UNSENT = ("settings", "slurm", "slurm_args", "dry_run", "resume")
"""Fields of a command that are no flags of its job, or that every job has."""
SEVERAL = ("nodes", "ntasks_per_node")
"""Options of sbatch that would start several processes."""
USUAL, MOST_REQUEUES = {"job_name": "nsde-policy", "time": 1440}, 100
"""Options of sbatch, and how often a job that reaches its time limit is queued again."""


class SlurmJob:
    """A command of this package that resumes what it finds, so it can be started any number of times."""

    def __init__(self, args: Sequence[str]) -> None:
        self.args = [*args]

    def __call__(self) -> None:
        """Run the command; submitit calls this in the job."""
        from nsde_policy.cli.main import parse_command, show_log

        show_log()
        check_command(parse_command(self.args)).run()

    def checkpoint(self) -> "DelayedSubmission":
        """Return what SLURM runs next if it stops the job: the same command."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def check_slurm(out: Path | None, *, resume: bool) -> None:
    """Raise if submitit is not installed, or the folder of a job's output is not given or not empty."""
    import_optional("submitit", "slurm")
    if is_launched():
        raise ConfigError("torchrun starts processes and --slurm a job: leave one out")
    if out is None:
        raise ConfigError("a job needs a folder for its output: add --out")
    if not resume and out.exists() and any(out.iterdir()):
        raise CheckpointError(f"{out} is not empty; continue with --resume or choose another --out")


def submit_command(name: str, command: "Train") -> None:
    """Submit a command as a job that resumes, and print its number; with --dry-run print its script."""
    assert command.out is not None  # `check_slurm` has refused it
    kept = [each for each in fields(command) if each.name not in UNSENT]
    given = {each.name: getattr(command, each.name) for each in kept}
    changed = {each.name: given[each.name] for each in kept if given[each.name] != each.default}
    args = [name, *list_flags(changed), *command.settings, "--resume"]
    for text in (*args, str(command.slurm), *command.slurm_args):
        if len(text.splitlines()) > 1:
            raise ConfigError(
                f"{text!r:.80} has a line break, behind which a job's script would be executed: leave it out"
            )
    folder = command.out.with_name(f"{command.out.name}-slurm")  # training wants --out for itself
    executor = _make_executor(folder, command)
    if command.dry_run:
        script = executor._make_submission_file_text(executor._submitit_command_str, "")
        print(f"{script.rstrip()}\n# runs: nsde-policy {shlex.join(args)}")
    else:
        print(f"submitted job {executor.submit(SlurmJob(args)).job_id}; its log is in {folder}")


def _make_executor(folder: Path, command: "Train") -> "SlurmExecutor":
    """Return what submits jobs or, for --dry-run, only writes their scripts; refuse unknown options."""
    slurm: type[SlurmExecutor] = import_optional("submitit", "slurm").SlurmExecutor
    if command.dry_run:  # a script can be written where SLURM is not installed
        slurm = type("ScriptWriter", (slurm,), {"affinity": classmethod(lambda cls: 1)})
    given = dict(option.partition("=")[::2] for option in command.slurm_args)
    known = slurm._valid_parameters()
    if wrong := [option for option, value in given.items() if option not in known or not value]:
        names = f"NAME=VALUE with one of {', '.join(sorted(known))}"
        raise ConfigError(f"--slurm-args has {wrong[0]!r}, expected {names}")
    options = {option: int(value) if value.isdecimal() else value for option, value in given.items()}
    if many := [option for option in SEVERAL if options.get(option, 1) != 1]:
        raise ConfigError(
            f"a job is one process, so {many[0]} must be 1: for several GPUs, write a script for sbatch that "
            "runs torchrun"
        )
    try:
        executor = slurm(folder, max_num_timeout=MOST_REQUEUES)
        executor.update_parameters(**{**USUAL, "partition": command.slurm, **options})
    except RuntimeError as error:  # there is no srun
        raise ConfigError(f"{error} --dry-run prints the script") from None
    return executor
