"""The command line: flags of every command with odd numbers, words, devices and paths.

An invocation is refused with exit code 2, or it works. A traceback or another exit code is a bug. One that
still works after `WORKING_S` has been accepted, and is ended.
"""

import os
import random
import signal
import sys
import tempfile
import time
import typing
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch

from attacks._attempts import REFUSED, SURVIVED, Attack, Attempt
from attacks._samples import make_samples
from nsde_policy.cli.main import COMMANDS, main
from nsde_policy.eval import generate as _generate  # noqa: F401  # forks start with what commands import
from nsde_policy.eval.report import collect as _collect  # noqa: F401
from nsde_policy.viewer import play_app as _play_app  # noqa: F401

WORKING_S = 6.0
"""Seconds after which an invocation counts as accepted."""
NUMBERS = (
    *("nan", "inf", "-inf", "-1", "0", "1", "3", "0.5", "1e308", "-0.0", "1e-320", "1_0"),
    *(str(2**31), str(2**64), "9" * 400, "100000000000"),
)
WORDS = ("", "x", "-", "../..", "\x1b[31m", "a\nb", "a\udcffb", "%s{0}", "é" * 200, "os:system", "alpha=nan")
DEVICES = ("cuda", "cuda:7", "mps", "gpu", "meta", "cpu:1", "CPU", "xpu", "auto", "")
PATHS = (
    *("", ".", "nowhere", "nowhere/x", "file/x", "~", "~x/y", "n" * 256, "n" * 250, "d/" * 2500 + "x"),
    *("shipped", "a\udcff", "a\nb", "pipe", "loop", "folder", "file", "x.png", "x.onnx", "new.zarr"),
)
"""Paths in a folder of their own, see `make_paths`."""
STORE, RUN = "v2.zarr", "run"
GOOD = {"path": STORE, "demos": STORE, "data": STORE, "runs": RUN, "run_dir": RUN, "root": "folder"}
GOOD |= {"name": "pusht", "rate": "10", "out": "out", "what": "latency", "episodes": "1", "workers": "1"}
"""Values of flags with which commands work."""


def prepare(folder: Path, stack: ExitStack) -> Attack:
    """Write files, and invoke commands at random, each in a fork that has imported everything."""
    torch.set_num_threads(1)
    make_samples(folder)
    commands = list(list_commands(COMMANDS))

    def attack(rng: random.Random, number: int) -> Attempt:
        name, command = commands[number % len(commands)]
        args = [*name, *draw_flags(command, rng)]
        return Attempt(" ".join(name), repr(args), lambda: invoke(args, folder))

    return attack


def list_commands(
    commands: dict[str, Any], group: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], type]]:
    """List the names and classes of all commands."""
    for name, found in commands.items():
        if isinstance(found, dict):
            yield from list_commands(found, (*group, name))
        elif name != "download":  # no attack uses the network
            yield (*group, name), found


def draw_flags(command: type, rng: random.Random) -> list[str]:
    """Draw arguments of a command: what it needs, and one or two odd values."""
    from tyro.conf import Positional

    is_positional = typing.get_args(Positional[int])[1]
    hints = typing.get_type_hints(command, include_extras=True)
    flags = [each for each in fields(command) if each.name != "config"]
    odd = rng.sample(flags, min(len(flags), rng.randint(1, 2)))
    positional, others = list[str](), list[str]()
    for each in flags:
        needed = each.default is each.default_factory is MISSING
        needed = needed or each.name in ("episodes", "workers", "out", "runs", "run_dir")
        if each not in odd and not needed:
            continue
        hint = hints[each.name]
        value = rng.choice(choose_values(each.name, str(hint))) if each in odd else GOOD.get(each.name, "x")
        if is_positional in getattr(hint, "__metadata__", ()):
            positional.append(value)
        else:
            others += [f"--{each.name.replace('_', '-')}", *([] if "bool" in str(hint) else [value])]
    return [*positional, *others]


def choose_values(name: str, hint: str) -> tuple[str, ...]:
    """Return odd values for a flag by its name and type."""
    if name == "device":
        return DEVICES
    if "Path" in hint or name in ("data", "policy"):
        return PATHS
    return NUMBERS if "int" in hint or "float" in hint else WORDS


def invoke(args: list[str], folder: Path) -> str:
    """Run a command in a fork; return how it ended."""
    with tempfile.TemporaryDirectory(dir=folder) as work, tempfile.TemporaryFile() as said:
        make_paths(Path(work), folder)
        child = os.fork()
        if child == 0:
            work_in_fork(args, work, said.fileno())
        ends = time.monotonic() + WORKING_S
        while not (status := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > ends:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return SURVIVED
            time.sleep(0.02)
        said.seek(0)
        return judge(os.waitstatus_to_exitcode(status[1]), said.read().decode(errors="replace"))


def work_in_fork(args: list[str], work: str, said: int) -> None:
    """Run a command in its own process group and folder, and end the process."""
    os.setpgid(0, 0)
    os.chdir(work)
    null = os.open(os.devnull, os.O_RDWR)
    for number, source in enumerate((null, null, said)):
        os.dup2(source, number)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace")
    code = 99
    try:
        code = main(args)
    finally:
        sys.stderr.flush()
        os._exit(code)


def make_paths(work: Path, folder: Path) -> None:
    """Make what the paths lead to."""
    (work / "folder").mkdir()
    (work / "file").write_text("x")
    os.mkfifo(work / "pipe")
    (work / "loop").symlink_to("loop")
    for name in (RUN, STORE):
        (work / name).symlink_to(folder / name)


def judge(code: int, said: str) -> str:
    """Return how an invocation ended by its exit code and its errors."""
    lines = said.strip().splitlines()
    if "Traceback" in said or "(a bug" in said or code not in (0, 2):
        return f"exit code {code}: {lines[-1:]}"
    if code == 2 and not lines:
        return "exit code 2 without a word"
    return REFUSED if code == 2 else SURVIVED
