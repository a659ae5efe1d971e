"""`nsde-policy`: parse the command line, run one command, report errors.

Commands import heavy packages inside `run`, after parsing, so that help and usage errors are fast.
"""

import io
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import tyro

from nsde_policy import __version__
from nsde_policy.errors import ConfigError, NsdePolicyError, is_out_of_memory, suggest, summarize_error
from nsde_policy.log import show_log
from nsde_policy.ranks import get_launched_rank, is_launched
from nsde_policy.video.command import VideoData, VideoEval, VideoTrain

from . import data
from .collect import Collect
from .compare import Compare, ReportCommand
from .doctor import Doctor
from .evaluate import Evaluate, ScoreCommand
from .export import Export
from .play import Play
from .serve import Serve
from .shared.flags import FLAG_RULES
from .shared.foreign import refuse_foreign
from .shared.options import Command, check_command
from .train import Train
from .tune import Tune

DESCRIPTION = "Neural SDE policies: imitation learning with one small network call per action."
PIPE_CLOSED = 141
"""Exit code if the reader of the output has closed it, as shells report SIGPIPE."""
CommandTree = Mapping[str, "type[Command] | CommandTree"]
COMMAND_GROUPS: Mapping[str, CommandTree] = {
    "start": {"play": Play, "eval": Evaluate, "doctor": Doctor},
    "data": {
        "data": {
            "info": data.DataInfo,
            "check": data.DataCheck,
            "view": data.DataView,
            "convert": data.DataConvert,
            "edit": data.DataEdit,
            "replay": data.DataReplay,
            "download": data.DataDownload,
        },
        "collect": Collect,
    },
    "train and score": {
        "train": Train,
        "tune": Tune,
        "score": ScoreCommand,
        "compare": Compare,
        "report": ReportCommand,
    },
    "deploy": {"export": Export, "serve": Serve},
    "the paper's video experiment": {"video": {"train": VideoTrain, "eval": VideoEval, "data": VideoData}},
}
"""Commands by name, as the first help page groups them: fields are flags, docstrings help texts."""
COMMANDS: CommandTree = {name: each for group in COMMAND_GROUPS.values() for name, each in group.items()}
FAMILIES = {
    "data": "Inspect, check, view, convert, edit, replay or download demonstrations.",
    "video": "Predict the next frames of videos.",
}
"""What the first help page says about commands that have commands."""

logger = logging.getLogger("nsde_policy")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0, 2 for invalid input, 1 for a bug, 130 if interrupted, 141 if the reader of the output has closed it.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without … or π
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    show_log()
    code = 0
    try:
        try:
            check_command(parse_command(args)).run()
        except SystemExit as stop:  # the version, the help text or what is wrong has been printed
            code = int(stop.code or 0)
        sys.stdout.flush()
    except BaseException as error:
        return _report_error(error, debug)
    return code


def parse_command(args: list[str]) -> Command:
    """Parse the flags of one command; exit after printing the help text, or what is wrong with them."""
    command: type[Command] | CommandTree = COMMANDS
    prog = "nsde-policy"
    while not isinstance(command, type):
        name, *rest = args or ["--help"]
        if name in ("-h", "--help", "--version"):
            text = f"nsde-policy {__version__}" if name == "--version" else _list_commands(command, prog)
            print(text, file=sys.stdout if args else sys.stderr)
            raise SystemExit(0 if args else 2)
        if name not in command:
            expected = f"expected {', '.join(command)}{suggest(name, command)}"
            raise ConfigError(f"{prog.removeprefix('nsde-policy ')} has no command {name!r}; {expected}")
        command, args, prog = command[name], rest, f"{prog} {name}"
    if issubclass(command, Train | VideoTrain):
        return command.parse(args, prog)
    refuse_foreign(args, command, prog.removeprefix("nsde-policy "))
    if {"-h", "--help"} & {*args}:  # tyro leaves flags that are given out of the help text
        args = ["--help"]
    return tyro.cli(command, args=args, prog=prog, registry=FLAG_RULES)


def _list_commands(commands: CommandTree, prog: str) -> str:
    """Return the help page of the program, or of a group of commands."""
    lines = [f"usage: {prog} [-h] [--version] COMMAND …", ""]
    if commands is not COMMANDS:
        return "\n".join([*lines, *_describe_commands(commands)])
    lines += [DESCRIPTION, ""]
    for title, group in COMMAND_GROUPS.items():
        lines += [title, *_describe_commands(group)]
    return "\n".join(
        [*lines, "", f"{prog} COMMAND --help lists its flags; --debug shows the traceback of an error."]
    )


def _describe_commands(commands: CommandTree) -> list[str]:
    """Return one line about each command."""
    texts = {
        name: str(each.__doc__).splitlines()[0] if isinstance(each, type) else FAMILIES[name]
        for name, each in commands.items()
    }
    return [f"  {name:9} {text}" for name, text in texts.items()]


def _report_error(error: BaseException, debug: bool) -> int:
    """Print why a command ended, and return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest at exit
        return PIPE_CLOSED
    if isinstance(error, KeyboardInterrupt):
        return _fail(str(error) or "interrupted", 130, debug)
    if isinstance(error, NsdePolicyError):
        return _fail(str(error), 2, debug)
    if isinstance(error, OSError):
        return _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}", 2, debug)
    if is_out_of_memory(error):
        return _fail(f"out of memory: {summarize_error(error)}; use smaller settings", 2, debug)
    missing = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else "nsde_policy"
    if missing != "nsde_policy":
        return _fail(f"this needs {missing}, which is not installed: pip install {missing}", 2, debug)
    return _fail(f"unexpected {type(error).__name__}: {error} (a bug; --debug shows where)", 1, debug)


def _fail(message: str, code: int, debug: bool) -> int:
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    if debug:
        traceback.print_exc()
    name = f"nsde-policy (rank {get_launched_rank()})" if is_launched() else "nsde-policy"
    print(f"{name}: {line}", file=sys.stderr)
    return code
