"""`nsde-policy`: parse, call one function, print.

Heavy imports happen inside the commands, after parsing, so that help and typing errors are instant.
"""

import contextlib
import difflib
import io
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, cast, get_args

import tyro

from nsde_policy import __version__
from nsde_policy.cli.benchmark import Benchmark
from nsde_policy.cli.bifurcation import BifurcationCommand
from nsde_policy.cli.collect import Collect
from nsde_policy.cli.compare import Compare
from nsde_policy.cli.data import DataCheck, DataDownload, DataInfo, DataReplay
from nsde_policy.cli.doctor import Doctor
from nsde_policy.cli.evaluate import Evaluate
from nsde_policy.cli.export import Export
from nsde_policy.cli.play import Play
from nsde_policy.cli.report import ReportCommand
from nsde_policy.cli.serve import Serve
from nsde_policy.cli.train import Train
from nsde_policy.errors import ConfigError, NsdePolicyError

_DESCRIPTION = """Neural SDE policies: imitation learning with one small network call per action.

`--debug` anywhere shows the traceback of an error; `--version` prints the version."""


class Command(Protocol):
    """A subcommand: its fields are the flags, its class docstring the help."""

    def run(self) -> None:
        """Do it; raise an `NsdePolicyError` when it cannot be done."""


_Data = (
    Annotated[DataInfo, tyro.conf.subcommand("info")]
    | Annotated[DataCheck, tyro.conf.subcommand("check")]
    | Annotated[DataReplay, tyro.conf.subcommand("replay")]
    | Annotated[DataDownload, tyro.conf.subcommand("download")]
)


def _commands(args: list[str]) -> Any:
    """Every subcommand; the defaults of `train` are those of the preset that `args` name."""
    return (
        Annotated[Train, tyro.conf.subcommand("train", default=Train.with_preset_of(args))]
        | Annotated[Evaluate, tyro.conf.subcommand("eval")]
        | Annotated[_Data, tyro.conf.subcommand("data", description="Look at demonstrations, or fetch them.")]
        | Annotated[Collect, tyro.conf.subcommand("collect")]
        | Annotated[Play, tyro.conf.subcommand("play")]
        | Annotated[Compare, tyro.conf.subcommand("compare")]
        | Annotated[ReportCommand, tyro.conf.subcommand("report")]
        | Annotated[Benchmark, tyro.conf.subcommand("benchmark")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[BifurcationCommand, tyro.conf.subcommand("bifurcation")]
        | Annotated[Serve, tyro.conf.subcommand("serve")]
        | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 for bad input, 1 for a bug, 130 when interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without … or π is no reason to fail
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    if args == ["--version"]:
        print(f"nsde-policy {__version__}")
        return 0
    command: Command | None = None
    try:
        command = _parse(args)
        command.run()
    except NsdePolicyError as error:
        return _fail(_in_flags(str(error), command), 2, debug)
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted", 130, debug)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 0
    except Exception as error:
        return _fail(f"unexpected {type(error).__name__}: {error} (a bug; --debug shows where)", 1, debug)
    return 0


def _in_flags(message: str, command: Command | None) -> str:
    """What a settings class says of its values, in the words of the command line: `push` is --push there."""
    refused = re.match(r"[A-Z]\w*: (need .*)", message)
    if command is None or refused is None:
        return message
    said, _, got = refused[1].partition(", got ")
    for flag in vars(command):
        said = re.sub(rf"\b{flag}\b", f"--{flag.replace('_', '-')}", said)
    return f"{said}, got {got}" if got else said


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"nsde-policy: {' '.join(message.split())}", file=sys.stderr)
    return code


def _parse(args: list[str]) -> Command:
    commands, said = _commands(args), io.StringIO()
    if {"-h", "--help"} & set(args):  # of the whole command: tyro leaves out what was given before
        args = [*_named(args, commands), "--help"]
    try:
        with contextlib.redirect_stderr(said):
            command = tyro.cli(
                commands,
                args=args,
                prog="nsde-policy",
                description=_DESCRIPTION,
                config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as stop:
        if not stop.code:
            raise  # --help
        named = " ".join(["nsde-policy", *_named(args, commands)])
        raise ConfigError(f"{_in_one_line(said.getvalue())}; see {named} --help") from None
    return cast(Command, command)


def _named(args: list[str], commands: Any) -> list[str]:
    """The subcommand, and the one below it, that the arguments begin with."""
    for command in get_args(commands):
        if args and args[0] == command.__metadata__[0].name:
            return [args[0], *_named(args[1:], command.__origin__)]
    return []


def _in_one_line(box: str) -> str:
    """What tyro says in a box of sections, in one line: the problem, and the nearest flag."""
    lines = [line.strip("│╭╮╰╯ \n") for line in box.splitlines()[1:]]
    found = re.split(r"[─-]{3,}", " ".join(lines))  # dashes where the terminal knows ASCII only
    sections = [" ".join(part.split()) for part in found if part.strip()]
    nearest = re.search(r"Perhaps you meant: (\S+)", " ".join(sections))
    # A settings class that refuses its values is named by tyro's own path to it, then by itself.
    problem = re.sub(r"^Error parsing __tyro-dummy-inner__\.(?:config\.)?(\S+): \w+:", r"\1:", sections[0])
    parts = [problem.rstrip(".")]
    if meant := nearest[1].rstrip(",") if nearest else _nearest(sections):
        parts.append(f"perhaps you meant {meant}")
    elif len(sections) > 1 and sections[1].startswith("Available"):
        parts.append(sections[1].lower())
    return "; ".join(parts)


def _nearest(sections: list[str]) -> str | None:
    """The subcommand or general flag closest to the first word that was not understood."""
    unknown = re.search(r"Unrecognized options: ([^\s,]+)", sections[0])
    if not unknown:
        return None
    listed = re.findall(r"[\w\-]+", sections[1].partition(":")[2]) if len(sections) > 1 else []
    close = difflib.get_close_matches(unknown[1], ["--help", "--debug", "--version", *listed], n=1)
    return close[0] if close else None


if __name__ == "__main__":
    sys.exit(main())
