"""Planner thread: runs queued jobs in a daemon thread, so that a slow policy does not block the caller.

The control session, the policy server and the viewer plan in such a thread. No torch here.
"""

import atexit
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

EXIT_TIMEOUT_S = 5.0
"""How long the end of the program waits for running jobs, seconds."""

Result = TypeVar("Result")


class PlannerThread(threading.Thread):
    """A daemon thread that runs submitted jobs one at a time, in order; it starts with the first job.

    `submit` returns a `concurrent.futures.Future`: poll it, wait for it with a timeout, or await it with
    `asyncio.wrap_future`. `Future.cancel` removes a job that is still waiting; a running job cannot be
    stopped, its result can only be ignored.

    Unlike `concurrent.futures.ThreadPoolExecutor`, a job that never returns does not keep the program from
    exiting. The exit waits up to `EXIT_TIMEOUT_S` for running jobs, because Python aborts if it exits while
    a thread is inside torch.
    """

    def __init__(self) -> None:
        super().__init__(name="nsde-policy planner", daemon=True)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def run(self) -> None:
        """Run jobs until the thread is closed."""
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a result that the caller has dropped is not kept alive until the next job

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Queue a job and return the future of its result; raise `RuntimeError` if the thread is closed.

        Any exception of the job, `SystemExit` and `KeyboardInterrupt` included, is set on the future, and the
        thread goes on with the next job.
        """
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the planner thread is closed and takes no jobs; create another")
            if self.ident is None:
                self.start()
            self._jobs.put(partial(_run_job, function, future))
        return future

    def close(self, timeout_s: float = 0.0) -> bool:
        """End the thread after the jobs in the queue; return whether it ended within the timeout."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
            if self.ident is None:
                return True
        self.join(timeout_s)
        return not self.is_alive()


def _run_job(function: Callable[[], Result], future: Future[Result]) -> None:
    """Run a job unless it was cancelled; its future gets the result, or any exception."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)


@atexit.register
def _close_threads() -> None:
    """End all threads when the program exits."""
    ends = time.monotonic() + EXIT_TIMEOUT_S
    for thread in threading.enumerate():
        if isinstance(thread, PlannerThread):
            thread.close(max(ends - time.monotonic(), 0.0))
