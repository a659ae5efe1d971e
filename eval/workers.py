"""Processes that work for a parent: without torch, which each of them would import."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from tqdm import tqdm


class WorkerPool(ProcessPoolExecutor):
    """Executor of spawned processes that leave Ctrl-C to their parent and end when it does, even if killed.

    Each process first calls `prepare`, a function of a module, with `arguments`.
    """

    def __init__(self, workers: int, prepare: Callable[..., None] | None = None, *arguments: object) -> None:
        self.capacity = workers
        self._others = {*multiprocessing.active_children()}
        context = multiprocessing.get_context("spawn")  # a forked torch may hang
        super().__init__(workers, context, _start_process, (prepare, arguments))

    def submit(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
        """Queue a call of a function; starts a process if all are busy.

        Processes inherit that Ctrl-C is blocked, so that it cannot interrupt their imports either.
        """
        if sys.platform == "win32":  # which has no masks of signals
            return super().submit(function, *args, **kwargs)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(function, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def __exit__(self, *exc_info: object) -> None:
        """End all processes; results that have not been read are lost."""
        for process in {*multiprocessing.active_children()} - self._others:
            process.terminate()
        self.shutdown(cancel_futures=True)


def _start_process(prepare: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own one would be left over when this process is ended
    if prepare is not None:
        prepare(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
