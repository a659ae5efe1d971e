"""Ctrl-C in training: the step is finished first, so that nothing is lost."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

logger = logging.getLogger(__name__)


@contextmanager
def defer_interrupt() -> Iterator[Callable[[], bool]]:
    """Give a function that returns whether Ctrl-C was pressed; a second one raises `KeyboardInterrupt`."""
    is_interrupted = False

    def note(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # the signal may have come while the log was written
            logger.info("interrupted: this step is finished and saved; press Ctrl-C again to end at once")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread receives signals
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, before)
