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

from attacks.result import REFUSED

ANSWER_S, START_S = 20.0, 300.0
"""Seconds that an attempt may take on a busy machine, and the start of a process."""
MOST_BYTES = 500 << 20
"""Bytes of resident memory that an attempt may take above those of the started process."""

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

    def __enter__(self) -> "Worker":
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._prepare, self._argument))
        self._process.start()
        other.close()
        if not self._connection.poll(START_S) or self._connection.recv() != "ready":
            raise RuntimeError(f"the process for {self._prepare.__module__} did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def attempt(self, payload: Any) -> str:
        """Run one attempt and return how it ended."""
        self._connection.send(payload)
        try:
            if self._connection.poll(ANSWER_S):
                return self._connection.recv()
            answer = f"no answer within {ANSWER_S:g} s"
        except (EOFError, ConnectionError):
            self._process.join()
            answer = f"the process died with exit code {self._process.exitcode}"
        self.__exit__()
        self.__enter__()
        return answer


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
    while True:
        payload = connection.recv()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forget the earlier peak
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            answer = run_guarded(attempt, payload)
        above = _read_status("VmHWM") - start
        connection.send(f"{above >> 20} MB above the start ({answer})" if above > MOST_BYTES else answer)


def _read_status(key: str) -> int:
    """Return a number of bytes from /proc, 0 on systems without it."""
    if not os.path.exists("/proc/self/status"):
        return 0
    return 1024 * int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0])
