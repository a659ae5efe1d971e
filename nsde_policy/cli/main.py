"""`nsde-policy`: parse the command line, run one command, report errors.

Commands import heavy packages inside `run`, after parsing, so that help and usage errors are fast.
"""

import errno
import functools
import io
import logging
import operator
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from nsde_policy import __version__
from nsde_policy.cli import options
from nsde_policy.cli.collect import Collect
from nsde_policy.cli.compare import Compare
from nsde_policy.cli.data import DataCheck, DataDownload, DataInfo, DataReplay, DataSetRate
from nsde_policy.cli.doctor import Doctor
from nsde_policy.cli.evaluate import Evaluate
from nsde_policy.cli.export import Export
from nsde_policy.cli.play import Play
from nsde_policy.cli.report import ReportCommand
from nsde_policy.cli.serve import Serve
from nsde_policy.cli.train import Train, expand_short_flags
from nsde_policy.cli.video_data import VideoData
from nsde_policy.cli.video_models import VideoEval, VideoTrain
from nsde_policy.errors import ConfigError, NsdePolicyError, is_out_of_memory, summarize_error

DESCRIPTION = """Neural SDE policies: imitation learning with one small network call per action.
--debug shows the traceback of an error; --version prints the version."""
COMMAND_GROUPS = {
    "data": "Inspect, check, replay or download demonstrations, or set their rate.",
    "video": "Predict the next frames of videos.",
}
"""Descriptions of the groups of commands."""
COMMANDS: dict[str, Any] = {
    "train": Train,
    "eval": Evaluate,
    "data": {
        "info": DataInfo,
        "check": DataCheck,
        "replay": DataReplay,
        "download": DataDownload,
        "set-rate": DataSetRate,
    },
    "collect": Collect,
    "play": Play,
    "compare": Compare,
    "report": ReportCommand,
    "export": Export,
    "serve": Serve,
    "doctor": Doctor,
    "video": {
        "train": VideoTrain,
        "eval": VideoEval,
        "data": VideoData,
    },
}
"""Classes of the commands by name; a group of commands is a dict. Fields are flags, docstrings help texts."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing that are no bug although they name no file."""


class ProgressBarHandler(logging.Handler):
    """Log handler that prints to stderr without breaking progress bars.

    It gives progress bars a lock of this process alone. Their own one is shared with forked processes, and
    one of those that is killed while it prints would keep it for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record above the progress bar."""
        from tqdm import tqdm

        with suppress(OSError):  # a full disk behind standard error stops no work
            tqdm.write(self.format(record), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0, 2 for invalid input, 1 for a bug, 130 if interrupted, 141 if the reader of the output has closed it.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without … or π
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    logger = logging.getLogger("nsde_policy")
    if not any(isinstance(handler, ProgressBarHandler) for handler in logger.handlers):
        logger.addHandler(ProgressBarHandler())
        logger.setLevel(logging.INFO)
    command, code = None, 0
    try:
        try:
            command = _parse_flags(args)
        except SystemExit as stop:  # the version, the help text or tyro's error has been printed
            code = int(stop.code or 0)
        else:
            options.check_command(command).run()
        sys.stdout.flush()
    except BaseException as error:
        return _report_error(error, command, debug)
    return code


def _report_error(error: BaseException, command: object, debug: bool) -> int:
    """Print why a command ended, and return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed it, as `| head` does
        _discard_output()
        return 128 + signal.SIGPIPE
    if interrupt := _find_interrupt(error):
        return _fail(str(interrupt) or "interrupted", 130, debug)
    if isinstance(error, NsdePolicyError):
        return _fail(_name_flags(str(error), command), 2, debug)
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename} cannot be used: {error.strerror}", 2, debug)
    if isinstance(error, OSError) and error.errno in FULL:
        _discard_output()  # perhaps it is what cannot be written
        return _fail(f"the output cannot be written: {error.strerror}", 2, debug)
    if is_out_of_memory(error):
        return _fail(f"out of memory: {summarize_error(error)}; use smaller settings", 2, debug)
    return _fail(f"unexpected {type(error).__name__}: {error} (a bug; --debug shows where)", 1, debug)


def _find_interrupt(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the Ctrl-C that an error comes from: libraries turn it into others while they are imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _open_missing_streams() -> None:
    """Open standard streams that were closed, so that no other file takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _discard_output() -> None:
    """Let standard output lead nowhere, so that Python does not fail to write the rest of it at exit."""
    with suppress(OSError):  # of a stream without a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse_flags(args: list[str]) -> Any:
    """Parse the flags of one command; exit with tyro's own message if they are invalid."""
    if args == ["--version"]:
        print(f"nsde-policy {__version__}")
        sys.exit()
    chosen: Any = COMMANDS
    prog = "nsde-policy"
    while isinstance(chosen, dict) and args and args[0] in chosen:
        chosen, prog, args = chosen[args[0]], f"{prog} {args[0]}", args[1:]
    for arg in args:
        if not arg.isascii() and arg != arg.encode(errors="replace").decode():
            raise ConfigError(f"{arg!r} is not UTF-8: rename the file, or link to it under another name")
    defaults: dict[str, Any] = {}
    if chosen is Train:
        args = expand_short_flags(args)
    if hasattr(chosen, "from_preset"):
        defaults["default"] = chosen.from_preset(args)
    if {"-h", "--help"} & {*args}:  # tyro leaves flags that are given out of the help text
        args = ["--help"]
    if isinstance(chosen, dict):
        defaults["description"] = COMMAND_GROUPS.get(prog.partition(" ")[2], DESCRIPTION)
    return tyro.cli(
        _build_union(chosen, prog.partition(" ")[2]) if isinstance(chosen, dict) else chosen,
        args=args,
        prog=prog,
        config=(tyro.conf.OmitSubcommandPrefixes,),
        **defaults,
    )


@dataclass(frozen=True)
class CommandGroup:
    """A group in the list of commands; `_parse_flags` opens it before tyro sees its name."""

    def run(self) -> None:
        """Raise `ConfigError`: tyro asks for a command itself, except in a group of one."""
        raise ConfigError("name a command of the group; --help lists them")


def _build_union(commands: Mapping[str, object], group: str) -> Any:
    """Build the union of command classes from which tyro makes the list of subcommands."""
    members = []
    for name, found in commands.items():
        if isinstance(found, dict):
            shown = tyro.conf.subcommand(name, description=COMMAND_GROUPS[f"{group} {name}".strip()])
            members.append(Annotated[CommandGroup, shown])
        else:
            members.append(Annotated[found, tyro.conf.subcommand(name)])
    return functools.reduce(operator.or_, members)


def _name_flags(message: str, command: object) -> str:
    """Replace field names by flags in the message of a settings class: "need push >= 0" names --push.

    Flags of `CameraCondition` start with camera.
    """
    rule = re.match(r"([A-Z]\w*): (need .*|\w+ must be .*)", message)
    if command is None or rule is None:
        return message
    prefix = "camera_" if rule[1] == "CameraCondition" else ""
    needed, comma, found = rule[2].partition(", got ")
    for flag in vars(command):
        name = flag.removeprefix(prefix)
        needed = re.sub(rf"(?<!-)\b{name}\b", f"--{flag.replace('_', '-')}", needed)
    return f"{needed}{comma}{found}"


def _fail(message: str, code: int, debug: bool) -> int:
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    with suppress(OSError):  # standard error may be full or closed
        if debug:
            traceback.print_exc()
        print(f"nsde-policy: {line}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
