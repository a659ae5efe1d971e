"""Flags that several commands share, with their help texts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from nsde_policy.errors import ConfigError
from nsde_policy.files import check_writable, replace_file
from nsde_policy.methods.registry import METHODS
from nsde_policy.tasks import TASKS

if TYPE_CHECKING:
    MethodName = TaskName = str
else:
    MethodName, TaskName = Literal[*METHODS.names()], Literal[*TASKS.names()]

STANDARD_OUTPUT = Path("-")
TOKEN_VARIABLE = "NSDE_POLICY_TOKEN"

RunPath = Annotated[
    Path | None,
    tyro.conf.Positional,
    tyro.conf.arg(help="Run directory; by default the policy shipped with the package."),
]
Episodes = Annotated[int, tyro.conf.arg(help="Number of episodes per run, on consecutive seeds.")]
SeedStart = Annotated[
    int,
    tyro.conf.arg(
        help="First seed; scores are published for 100000 and up, settings are tuned on 200000 and up."
    ),
]
ResetRuleFlag = Annotated[
    Literal["benchmark", "gym_pusht"] | None,
    tyro.conf.arg(help="How a seed becomes a start, in environments with several rules (Push-T)."),
]
Chunk = Annotated[
    int | None,
    tyro.conf.arg(help="Actions executed before planning again (T_a); by default as in training."),
]
SamplingChanges = Annotated[
    tuple[str, ...],
    tyro.conf.arg(help="Changes to the sampling settings: alpha=0.5, or scheduler=ddim steps=10."),
]
Workers = Annotated[
    int, tyro.conf.arg(help="Worker processes; 0 for one per core. Results do not depend on it.")
]
Device = Annotated[
    str, tyro.conf.arg(help="Torch device of the policy: cpu, cuda, cuda:1; auto uses a GPU if there is one.")
]
LatencyRounds = Annotated[
    int, tyro.conf.arg(help="Timed plans per method, on one CPU thread; 0 skips the latency measurement.")
]
Reference = Annotated[
    str | None, tyro.conf.arg(help="Row to compare the others with; neural_sde by default.")
]
Host = Annotated[
    str, tyro.conf.arg(help="Address to listen on; any address except loopback requires a token.")
]
Port = Annotated[int, tyro.conf.arg(help="TCP port; 0 picks a free one.")]
TokenFile = Annotated[
    Path | None, tyro.conf.arg(help=f"File with the token of clients; default: variable {TOKEN_VARIABLE}.")
]
JsonFile = Annotated[
    Path | None,
    tyro.conf.arg(help="Write results as JSON to this file; '-' prints JSON instead of the table."),
]


def build_env_kwargs(reset_rule: str | None) -> dict[str, str]:
    """Return the keyword arguments of an environment; without a rule, its task decides."""
    return {} if reset_rule is None else {"reset_rule": reset_rule}


def check_json_file(path: Path | None) -> None:
    """Raise `OutputError` if the file of `--json` cannot be written."""
    if path not in (None, STANDARD_OUTPUT):
        check_writable(path)


def print_results(path: Path | None, json: str, table: str) -> None:
    """Write `json` to the file of `--json`, and print the table, or `json` for '-'."""
    if path not in (None, STANDARD_OUTPUT):
        replace_file(path, json.encode())
    print(json if path == STANDARD_OUTPUT else table)


def read_token(path: Path | None) -> str | None:
    """Read the token from a file or from the environment; None if there is none.

    There is no flag for the token itself, because other users can list command lines.
    """
    if path is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"cannot read the token from {path}: {reason}; check --token-file") from None
