"""Attempts of a target, in a process of their own: a hang, a crash or a memory peak is an answer.

A target is a module with a function `prepare(folder, stack) -> Attack`. It may write into the folder, and
adds to the stack what is to be closed at the end.
"""

import contextlib
import importlib
import io
import multiprocessing
import random
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

REFUSED, SURVIVED = "refused", "survived"
"""How an attempt ends well; any other answer describes a bug."""
ANSWER_S, START_S = 90.0, 300.0
"""Seconds that an attempt may take on a busy machine, and the start of a target."""
MOST_BYTES = 500 << 20
"""Bytes of resident memory that an attempt may take."""


class Attempt(NamedTuple):
    """One attempt of a target."""

    row: str
    """Row of the table in which it is counted."""
    what: str
    """What is tried, to repeat it."""
    run: Callable[[], str | int]
    """Returns `REFUSED`, `SURVIVED`, a bug, or how many attempts were survived; or raises."""


Attack = Callable[[random.Random, int], Attempt]
"""Draws the attempt of a number."""


@dataclass
class Row:
    """Counts of one kind of attack.

    Every attempt ends in exactly one of three ways: it was refused with a typed error (one line, exit code
    2), it was survived (the correct answer, or normal operation afterwards), or it found a bug.
    """

    refused: int = 0
    survived: int = 0
    bugs: list[str] = field(default_factory=list)
    """One line per bug: the input that caused it, and what happened."""

    def count(self, answer: str | int, what: str) -> None:
        """Add the answer of one attempt, or a number of attempts that were survived."""
        if answer == REFUSED:
            self.refused += 1
        elif answer == SURVIVED or isinstance(answer, int):
            self.survived += answer if isinstance(answer, int) else 1
        else:
            self.bugs.append(f"{what:.300}: {answer}")


class Worker:
    """A process that runs the attempts of a target one by one, and is replaced when it hangs or dies."""

    def __init__(self, target: str, seed: int) -> None:
        self._target, self._seed = target, seed

    def __enter__(self) -> "Worker":
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._target, self._seed))
        self._process.start()
        other.close()
        if self._receive(START_S) != "ready":
            self._process.kill()
            raise RuntimeError(f"the process of {self._target} did not start")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ConnectionError):
            self._connection.send(None)
        self._process.join(10)
        self._process.kill()
        self._process.join()

    def attempt(self, number: int, rows: dict[str, Row]) -> None:
        """Run one attempt and count how it ended."""
        self._connection.send(number)
        drawn = self._receive(ANSWER_S)
        row, what = drawn if isinstance(drawn, tuple) else (self._target, f"attempt {number}")
        answer = self._receive(ANSWER_S) if isinstance(drawn, tuple) else None
        if answer is None:
            self._process.join(1)
            code = self._process.exitcode
            answer = f"no answer within {ANSWER_S:g} s" if code is None else f"died with exit code {code}"
            self.__exit__()
            self.__enter__()
        rows.setdefault(f"{self._target}: {row}", Row()).count(answer, what)

    def _receive(self, seconds: float) -> object:
        with contextlib.suppress(EOFError, ConnectionError):
            if self._connection.poll(seconds):
                return self._connection.recv()
        return None


def run_guarded(run: Callable[[], str | int]) -> str | int:
    """Return how an attempt ended; errors of the package of one line are refusals, any other is a bug."""
    from nsde_policy.errors import NsdePolicyError

    try:
        return run()
    except NsdePolicyError as error:
        return REFUSED if "\n" not in str(error) else f"an error of several lines: {error!r:.200}"
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.200}"


def _serve(connection: Connection, target: str, seed: int) -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        attack = importlib.import_module(f"attacks.{target}").prepare(Path(folder), stack)
        connection.send("ready")
        while (number := connection.recv()) is not None:
            drawn: Attempt = attack(random.Random(f"{target} {seed} {number}"), number)
            connection.send((drawn.row, drawn.what))
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
            start = _read_status("VmRSS")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                answer = run_guarded(drawn.run)
            taken = _read_status("VmHWM") - start
            connection.send(f"took {taken >> 20} MB ({answer})" if taken > MOST_BYTES else answer)


def _read_status(key: str) -> int:
    """Return a number of bytes from /proc, 0 on systems without it."""
    status = Path("/proc/self/status")
    return 1024 * int(status.read_text().partition(f"{key}:")[2].split()[0]) if status.exists() else 0
