"""`nsde-policy`: parse the command line, run one command, report errors.

Commands import heavy packages inside `run`, after parsing, so that help and usage errors are fast.
"""

import io
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nsde_policy.errors import ConfigError, NsdePolicyError, is_out_of_memory, suggest, summarize_error
from nsde_policy.log import show_log
from nsde_policy.ranks import get_launched_rank, is_launched
from nsde_policy.version import __version__

from . import data
from .collect import Collect
from .compare import Compare
from .doctor import Doctor
from .evaluate import Evaluate, ScoreCommand
from .export import Export
from .play import Play
from .serve import Serve
from .shared.options import Command, check_flags_and_pick_device
from .train import Train
from .tune import Tune

PIPE_CLOSED = 141
"""Exit code if the reader of the output has closed it, as shells report SIGPIPE."""
CommandTree = Mapping[str, "type[Command] | CommandTree"]


@dataclass(frozen=True)
class Program:
    """A program with commands, whose fields are flags and whose docstrings are help texts."""

    name: str
    description: str
    groups: Mapping[str, CommandTree]
    """Commands by name, as the first help page groups them."""
    families: Mapping[str, str] = field(default_factory=dict)
    """What the first help page says about commands that have commands."""

    @property
    def commands(self) -> CommandTree:
        """All commands by name."""
        return {name: command for group in self.groups.values() for name, command in group.items()}

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run one command and return the exit code.

        0; 2 for invalid input, 1 for a bug, 130 if interrupted, 141 if the reader of the output closed it.
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
                check_flags_and_pick_device(self.parse(args)).run()
            except SystemExit as stop:  # the version, the help text or what is wrong has been printed
                code = int(stop.code or 0)
            sys.stdout.flush()
        except BaseException as error:
            return _report_error(error, self.name, debug)
        return code

    def parse(self, args: list[str]) -> Command:
        """Parse the flags of one command; exit after printing the help text, or what is wrong with them."""
        command: type[Command] | CommandTree = self.commands
        prog = self.name
        while not isinstance(command, type):
            name, *rest = args or ["--help"]
            if name in ("-h", "--help", "--version"):
                text = f"{self.name} {__version__}" if name == "--version" else self.describe(command, prog)
                print(text, file=sys.stdout if args else sys.stderr)
                raise SystemExit(0 if args else 2)
            if name not in command:
                expected = f"expected {', '.join(command)}{suggest(name, command)}"
                raise ConfigError(f"{prog.removeprefix(f'{self.name} ')} has no command {name!r}; {expected}")
            command, args, prog = command[name], rest, f"{prog} {name}"
        return command.parse(args, prog)

    def describe(self, commands: CommandTree, prog: str) -> str:
        """Return the help page of the program, or of a family of commands."""
        lines = [f"usage: {prog} [-h] [--version] COMMAND …", ""]
        if prog != self.name:
            return "\n".join([*lines, *self._list(commands)])
        lines += [self.description, ""]
        for title, group in self.groups.items():
            lines += [title, *self._list(group)]
        lines += ["", f"{prog} COMMAND --help lists its flags; --debug shows the traceback of an error."]
        return "\n".join(lines)

    def _list(self, commands: CommandTree) -> list[str]:
        """Return one line about each command."""
        texts = {
            name: str(command.__doc__).splitlines()[0] if isinstance(command, type) else self.families[name]
            for name, command in commands.items()
        }
        return [f"  {name:9} {text}" for name, text in texts.items()]


NSDE_POLICY = Program(
    "nsde-policy",
    "Neural SDE policies: imitation learning with one small network call per action.",
    {
        "start": {"play": Play, "eval": Evaluate, "doctor": Doctor},
        "data": {
            "data": {
                "info": data.DataInfo,
                "check": data.DataCheck,
                "view": data.DataView,
                "convert": data.DataConvert,
                "edit": data.DataEdit,
                "download": data.DataDownload,
            },
            "collect": Collect,
        },
        "train and score": {
            "train": Train,
            "tune": Tune,
            "score": ScoreCommand,
            "compare": Compare,
        },
        "deploy": {"export": Export, "serve": Serve},
    },
    {"data": "Inspect, check, view, convert, edit or download demonstrations."},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `nsde-policy` and return its exit code, see `Program.run`."""
    return NSDE_POLICY.run(argv)


def _report_error(error: BaseException, program: str, debug: bool) -> int:
    """Print why a command ended, and return its exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest at exit
        return PIPE_CLOSED
    message, code = _describe_error(error)
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    if debug:
        traceback.print_exc()
    name = f"{program} (rank {get_launched_rank()})" if is_launched() else program
    print(f"{name}: {line}", file=sys.stderr)
    return code


def _describe_error(error: BaseException) -> tuple[str, int]:
    """Return what to print about an error, and the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted", 130
    if isinstance(error, NsdePolicyError):
        return str(error), 2
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'} cannot be used: {error.strerror or error}", 2
    if is_out_of_memory(error):
        return f"out of memory: {summarize_error(error)}; use smaller settings", 2
    missing = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else "nsde_policy"
    if missing != "nsde_policy":
        return f"this needs {missing}, which is not installed: pip install {missing}", 2
    return f"unexpected {type(error).__name__}: {error} (a bug; --debug shows where)", 1
