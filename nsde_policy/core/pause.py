"""Points within a long computation at which its thread may run something more urgent first."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_local = threading.local()


@contextmanager
def run_at_pauses(function: Callable[[], None]) -> Iterator[None]:
    """Call a function at every pause point that this thread reaches within the block, except in itself."""

    def run_once() -> None:
        _local.function = None
        try:
            function()
        finally:
            _local.function = run_once

    _local.function = run_once
    try:
        yield
    finally:
        _local.function = None


def pause_point() -> None:
    """Let the function of `run_at_pauses` run, if there is one; the caller must hold no lock."""
    if (function := getattr(_local, "function", None)) is not None:
        function()
