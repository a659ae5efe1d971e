"""Flags that several commands share, with their help texts, and checks before anything heavy is imported."""

import abc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args, get_type_hints

import tyro
from tyro.conf import Positional, arg

from nsde_policy.assets import SHIPPED_TASK, resolve_run
from nsde_policy.bounds import Count, Natural, SeedNumber
from nsde_policy.config import check_value, get_bounded_fields
from nsde_policy.errors import CheckpointError, ConfigError, DemoError, import_optional, suggest
from nsde_policy.files import check_writable, parse_json, read_file, read_json, replace_file
from nsde_policy.methods.registry import METHODS
from nsde_policy.ranks import is_launched
from nsde_policy.tasks import NO_TASK

from .foreign import refuse_foreign

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[*METHODS.names()]

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = Path("-")
TOKEN_VARIABLE = "NSDE_POLICY_TOKEN"
MAX_TOKEN_BYTES = 4096
SHIPPED_RUN = Path("shipped")
"""Run that commands use by default: the policy of this package."""
RUNS = Path("runs")
"""Folder in which training writes runs by default."""
SHOWN_RUNS = 5
"""Most names that an error lists."""


@dataclass(frozen=True)
class Check:
    """Part of a flag's type: checks the value before torch is imported."""

    function: Callable[[Any], None]


def check_json_file(path: Path) -> None:
    """Raise if the file of --json cannot be written."""
    if path != STANDARD_OUTPUT:
        check_writable(path)


def check_demos(path: Path) -> None:
    """Raise `DemoError` if demonstrations do not exist; the Hub is asked later."""
    if not path.exists() and path.parts[:1] != ("hf:",):
        raise DemoError(f"{path} does not exist{_suggest_demos(path)}")


AcceptOmittedChunksFlag = Annotated[
    bool, arg(help="Read missing chunks of the store as the fill value, not as damage.")
]
DemosPath = Annotated[Path, Check(check_demos)]
RunPath = Annotated[Path, Check(lambda run: check_run(run))]
RunFlag = Annotated[
    RunPath,
    Positional,
    arg(help="Run directory, or a policy of this package: `shipped`, or `shipped-pixels` with a camera."),
]
EpisodesFlag = Annotated[Count, arg(help="Number of episodes per run, on consecutive seeds.")]
SeedStartFlag = Annotated[
    SeedNumber, arg(help="First seed; scores are published for 100000+, tuning uses 200000+.")
]
EnvFlag = Annotated[
    str | None,
    arg(
        help="Environment: a Gymnasium id (Pendulum-v1) or module:Class; default: as in training, with the "
        "keyword arguments that the run records. With --env, only those of --env-kwargs count."
    ),
]
EnvKwargsFlag = Annotated[
    str | None,
    arg(help="""Keyword arguments of the environment, a JSON object: '{"g": 9.8}'."""),
]
ChunkFlag = Annotated[Count | None, arg(help="Actions executed before replanning; default: as in training.")]
SamplingFlag = Annotated[
    tuple[str, ...], arg(help="Changes to the sampling settings: alpha=0.5, or scheduler=ddim steps=10.")
]
WorkersFlag = Annotated[Natural, arg(help="Processes; 0 for one per core. Results do not depend on it.")]
DeviceFlag = Annotated[str, arg(help="Torch device: cpu, cuda, cuda:1; auto uses a GPU if there is one.")]
RayFlag = Annotated[str | None, arg(help="Ray cluster to use: auto, HOST:6379, or local to start one here.")]
TokenFileFlag = Annotated[Path | None, arg(help=f"File with the token; default: variable {TOKEN_VARIABLE}.")]
JsonFileFlag = Annotated[
    Annotated[Path, Check(check_json_file)] | None,
    arg(help="Write JSON to this file; '-' prints it instead of the table."),
]
JsonAddressFlag = Annotated[bool, arg(help="Print the address as one line of JSON.")]


class Command(abc.ABC):
    """Flags of a command as fields of a frozen dataclass."""

    uses_ranks: ClassVar[bool] = False
    """Whether torchrun may start it in several processes."""

    @classmethod
    def parse(cls, args: Sequence[str], prog: str) -> Self:
        """Parse the flags; exit after a help text, or after saying what is wrong with them."""
        refuse_foreign(args, cls, prog.partition(" ")[2])
        if {"-h", "--help"} & {*args}:  # tyro leaves flags that are given out of the help text
            args = ["--help"]
        return tyro.cli(cls, args=args, prog=prog)

    def check(self) -> None:  # noqa: B027  # not abstract: most commands have nothing to refuse
        """Refuse flags that do not fit together, before torch is imported."""

    def resolve_device(self) -> Self:
        """Return the command with a device that torch can use."""
        return self

    @abc.abstractmethod
    def run(self) -> None:
        """Do what the command is for."""


class DeviceCommand(Command):
    """A command with the flag --device."""

    device: str

    def resolve_device(self) -> Self:
        """Return the command with a device that torch can use; raise `ConfigError` if it cannot."""
        if self.device == "cpu":
            return self
        if self.device.startswith("cuda") and version("torch").endswith("+cpu"):
            raise ConfigError(
                f"device {self.device!r} cannot be used here (torch is built without CUDA); try --device cpu"
            )
        from nsde_policy.training.train import pick_device

        return self._set_device(pick_device(self.device))

    def _set_device(self, device: str) -> Self:
        return replace(self, device=device)  # type: ignore[type-var]


class RolloutCommand(DeviceCommand):
    """A command that rolls out policies here or, with --ray, on a cluster."""

    workers: int
    ray: str | None

    def resolve_device(self) -> Self:
        """Return the command with its device; on a cluster, Ray chooses the GPU."""
        if self.ray is None:
            return super().resolve_device()
        import_optional("ray", "ray")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {self.device} does not fit --ray, which chooses the GPU: use cuda")
        return self._set_device("cuda" if self.device == "cuda" else "cpu")


def check_flags_and_pick_device(command: Command) -> Command:
    """Check the flags of any command before torch is imported; return it with a device in place of "auto".

    Numbers must be within the bounds of their types. Paths must pass the `Check` in theirs.
    """
    if is_launched() and not command.uses_ranks:
        raise ConfigError("torchrun is for `train`: start this command without it")
    kind: type = type(command)
    for name, hint in get_bounded_fields(kind).items():
        check_value(f"--{name.replace('_', '-')}", getattr(command, name), hint)
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for check in _find_checks(hint):
            value = getattr(command, name)
            for path in value if isinstance(value, tuple) else (value,):
                if path is not None:
                    check.function(path)
    command.check()
    return command.resolve_device()


def _find_checks(hint: object) -> list[Check]:
    """Return the checks in a type and in its parts."""
    checks = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Check)]
    return checks + [check for part in get_args(hint) for check in _find_checks(part)]


def parse_env_kwargs(text: str | None) -> dict[str, Any]:
    """Parse the JSON object of `--env-kwargs`; an absent flag gives no arguments."""
    return {} if text is None else parse_json(text, name="--env-kwargs", error=ConfigError)


def warn_if_unfinished(run: Path) -> None:
    """Log a warning if the training of a run stopped early."""
    from nsde_policy.run_directory import RunDirectory

    if (stopped := RunDirectory(run).describe_unfinished()) is not None:
        logger.warning("unfinished run: %s", stopped)


def print_results(path: Path | None, results: str, table: str) -> None:
    """Write `results`, JSON, to the file of `--json`, and print the table, or `results` for '-'."""
    if path not in (None, STANDARD_OUTPUT):
        replace_file(path, results)
    print(results if path == STANDARD_OUTPUT else table)


def read_token(path: Path | None) -> str | None:
    """Read the token from a file or from the environment; None if there is none.

    There is no flag for the token itself, because other users can list command lines.
    """
    if path is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return read_file(path, MAX_TOKEN_BYTES, error=ConfigError).decode().strip()
    except (ConfigError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, ConfigError) else "not a text file"
        raise ConfigError(f"cannot read the token: {reason}; check --token-file {path}") from None


def check_run(run: Path) -> None:
    """Raise `CheckpointError` unless a folder is a run directory."""
    directory = resolve_run(run)
    if (directory / "config.json").exists() or not isinstance(run, Path):
        return
    what = "is not a run directory: it has no config.json" if directory.exists() else "does not exist"
    others = sorted(
        {
            path.parent
            for folder in {directory.parent, directory, RUNS}
            for path in folder.glob("*/config.json")
        }
    )
    listed = ", ".join(map(str, others[:SHOWN_RUNS])) + (", …" if others[SHOWN_RUNS:] else "")
    there_are = f"there are {listed}" if others else "`nsde-policy train` writes one"
    raise CheckpointError(f"{run} {what}; {there_are}, and `shipped` is the policy of this package")


def check_environment(run: Path) -> None:
    """Raise `ConfigError` if a run was trained without a task, and so without an environment.

    The record is read without `RunDirectory`, which imports torch.
    """
    values = read_json(resolve_run(run) / "config.json", error=CheckpointError)
    if values.get("task") == NO_TASK:
        raise ConfigError(
            f"{run} was trained without a task, so it has no environment: give one with --env, or "
            f"score recorded episodes with `nsde-policy score {run} --demos STORE`"
        )


def _suggest_demos(path: Path) -> str:
    """Return what to do about demonstrations that do not exist."""
    if SHIPPED_TASK in path.name:
        return f": `nsde-policy data download {SHIPPED_TASK} --out {path}` writes human demonstrations there"
    names = (each.name for each in path.parent.glob("*")) if path.parent.is_dir() else ()
    similar = suggest(path.name, names)
    return f"; expected a file or folder of demonstrations{similar}"
