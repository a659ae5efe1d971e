"""A process that attempts attacks: a hang, a crash or a memory peak is an answer, not the end."""

import contextlib
import io
import multiprocessing
import os
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacks.result import AttackResult

ANSWER_S, START_S = 5.0, 120.0
"""Seconds that an attempt may take, and the start of a process."""
MOST_BYTES = 500 << 20
"""Bytes of resident memory that an attempt may take above those of the started process."""
REFUSED, SURVIVED = "refused", "survived"

Attempt = Callable[[Any], str]
"""Attacks with a payload; returns `REFUSED`, `SURVIVED` or a bug, or raises an error of the package."""


class Worker:
    """A process that runs attempts one by one and is replaced when it hangs or dies.

    Args:
        prepare: Imports and prepares everything, and returns the attempt; a module-level function.
        argument: Passed to `prepare`.
    """

    def __init__(self, prepare: Callable[[Any], Attempt], argument: Any) -> None:
        self._prepare, self._argument = prepare, argument
        self._process: Any = None

    def __enter__(self) -> "Worker":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.send(None)
        self._process.join(ANSWER_S)
        self._process.kill()
        self._process.join()

    def attempt(self, payload: Any, result: AttackResult, name: str) -> None:
        """Run one attempt and count how it ended."""
        self._connection.send(payload)
        answer = None
        try:
            if self._connection.poll(ANSWER_S):
                answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            answer = f"the process died with exit code {self._process.exitcode}"
        if answer is None or not self._process.is_alive():
            self._process.kill()
            self._process.join()
            self._start()
        count(result, answer or f"no answer within {ANSWER_S:g} s", name)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._prepare, self._argument))
        self._process.start()
        other.close()
        if not self._connection.poll(START_S) or self._connection.recv() != "ready":
            raise RuntimeError(f"the process for {self._prepare.__module__} did not start")


def count(result: AttackResult, answer: str, name: str) -> None:
    """Count an answer of an attempt."""
    if answer == REFUSED:
        result.refused += 1
    elif answer == SURVIVED:
        result.survived += 1
    else:
        result.bugs.append(f"{name}: {answer}")


def run_guarded(attempt: Attempt, payload: Any) -> str:
    """Return how an attempt ended; errors of the package of one line are refusals, any other is a bug."""
    from nsde_policy.errors import NsdePolicyError

    try:
        return attempt(payload)
    except NsdePolicyError as error:
        return REFUSED if "\n" not in str(error) else f"an error of several lines: {error!r:.200}"
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.200}"


def _serve(connection: Connection, prepare: Callable[[Any], Attempt], argument: Any) -> None:
    warnings.simplefilter("ignore")
    attempt = prepare(argument)
    start = _read_status("VmRSS")
    connection.send("ready")
    while (payload := connection.recv()) is not None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            answer = run_guarded(attempt, payload)
        above = _read_status("VmHWM") - start
        if above > MOST_BYTES:
            answer = f"{above >> 20} MB above the start ({answer})"
        connection.send(answer)


def _read_status(key: str) -> int:
    """Return a number of bytes from /proc, 0 on systems without it."""
    if not os.path.exists("/proc/self/status"):
        return 0
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0])
