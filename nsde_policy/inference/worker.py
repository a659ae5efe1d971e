"""Planner thread: runs queued jobs in a daemon thread, so that a slow policy does not block the caller.

The control session, the policy server and the viewer plan in such a thread. No torch here.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

EXIT_TIMEOUT_S = 5.0
"""How long the end of the program waits for a running job, seconds."""

Result = TypeVar("Result")


class _Job(NamedTuple):
    function: Callable[[], Any]
    future: Future[Any]


class PlannerThread:
    """A daemon thread that runs submitted jobs one at a time, in order.

    `submit` returns a `concurrent.futures.Future`: poll it, wait for it with a timeout, add a callback, or
    await it with `asyncio.wrap_future`. `Future.cancel` removes a job that is still waiting; a running job
    cannot be stopped, its result can only be ignored.

    Unlike `concurrent.futures.ThreadPoolExecutor`, a job that never returns does not keep the program from
    exiting. The exit waits up to `EXIT_TIMEOUT_S` for a running job, because Python aborts if it exits while
    a thread is inside torch.
    """

    def __init__(self, name: str = "nsde-policy planner") -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, _stop, self._jobs, self._thread)

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """Queue a job and return the future of its result.

        Any exception of the job, `SystemExit` and `KeyboardInterrupt` included, is set on the future, and the
        thread goes on with the next job.

        Raises:
            RuntimeError: If the thread has been closed.
        """
        if self._closed:
            raise RuntimeError("the planner thread is closed and takes no jobs; create another")
        future: Future[Result] = Future()
        self._jobs.put(_Job(function, future))
        return future

    @property
    def busy_s(self) -> float:
        """How long the current job has been running, seconds; 0 while idle."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self, timeout_s: float = 0.0) -> bool:
        """End the thread after the jobs in the queue; return whether it ended within the timeout."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                self._busy_since = time.monotonic()
                try:
                    job.future.set_result(job.function())
                except BaseException as error:
                    job.future.set_exception(error)
                self._busy_since = None
            del job  # a result that the caller has dropped is not kept alive until the next job


def _stop(jobs: queue.SimpleQueue[_Job | None], thread: threading.Thread) -> None:
    """Stop the thread when the program exits, or when its `PlannerThread` is garbage-collected."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(EXIT_TIMEOUT_S)
