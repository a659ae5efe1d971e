"""`nsde-policy`: parse, call one function, print.

Heavy imports happen inside the commands, after parsing, so that help and typing errors are instant.
"""

import contextlib
import io
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Protocol, cast

import tyro

from nsde_policy import __version__
from nsde_policy.commands.bifurcation import BifurcationCommand
from nsde_policy.commands.data import DataCheck, DataInfo, DataReplay
from nsde_policy.commands.doctor import Doctor
from nsde_policy.errors import NsdePolicyError, UsageError

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
)
_Commands = (
    Annotated[BifurcationCommand, tyro.conf.subcommand("bifurcation")]
    | Annotated[_Data, tyro.conf.subcommand("data", description="Look at demonstrations.")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 2 for bad input, 1 for a bug, 130 when interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    if args == ["--version"]:
        print(f"nsde-policy {__version__}")
        return 0
    try:
        _parse(args).run()
    except NsdePolicyError as error:
        return _fail(str(error), 2, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, debug)
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 0
    except Exception as error:
        return _fail(f"unexpected {type(error).__name__}: {error} (a bug; --debug shows where)", 1, debug)
    return 0


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"nsde-policy: {' '.join(message.split())}", file=sys.stderr)
    return code


def _parse(args: list[str]) -> Command:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command = tyro.cli(
                _Commands,
                args=args,
                prog="nsde-policy",
                description=_DESCRIPTION,
                config=(
                    tyro.conf.OmitArgPrefixes,
                    tyro.conf.OmitSubcommandPrefixes,
                    tyro.conf.FlagCreatePairsOff,
                ),
            )
    except SystemExit as stop:
        if not stop.code:
            raise  # --help
        raise UsageError(_in_one_line(said.getvalue())) from None
    return cast(Command, command)


def _in_one_line(box: str) -> str:
    """What tyro says in a box of sections, in one line: the problem, and the nearest flag."""
    lines = [line.strip("│╭╮╰╯ \n") for line in box.splitlines()[1:]]
    sections = [" ".join(part.split()) for part in re.split(r"─{3,}", " ".join(lines))]
    nearest = re.search(r"Perhaps you meant: (\S+)", box_text := " ".join(sections))
    where = re.findall(r"(?:run|see):? (nsde-policy[\w\- ]*--help)", box_text)
    parts = [sections[0].rstrip(".")]
    if nearest:
        parts.append(f"perhaps you meant {nearest[1].rstrip(',')}")
    elif len(sections) > 1 and sections[1].startswith("Available"):
        parts.append(sections[1].lower())
    if where:
        parts.append(f"see {where[-1]}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
