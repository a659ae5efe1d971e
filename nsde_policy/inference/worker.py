"""Plans in a thread of their own, so that whoever asked for them can do other things meanwhile."""

import queue
import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from nsde_policy.deploy.protocol import check_plan
from nsde_policy.deploy.server.auth import describe
from nsde_policy.errors import RemoteFailedError
from nsde_policy.inference.spec import Plan, Planner


class _Job(NamedTuple):
    states: np.ndarray
    steps: int
    seed: int
    plan: Future[Plan]


class PlanThread:
    """Plans one request after the other; one that is cancelled while it waits is never begun.

    Python aborts where it ends while a thread is inside torch, so `stop` waits; not for ever, because some
    planner may never return.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._began: float | None = None
        self._thread = threading.Thread(target=self._work, name="plans", daemon=True)
        self._thread.start()

    def submit(self, states: np.ndarray, *, steps: int, seed: int) -> Future[Plan]:
        """A plan to come, finite and of the right shapes; or `RemoteFailedError`, whatever went wrong."""
        job = _Job(states, steps, seed, Future())
        self._jobs.put(job)
        return job.plan

    @property
    def busy_s(self) -> float:
        """How long the plan now being made has taken so far, seconds."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def stop(self, patience_s: float) -> bool:
        """End the thread after what was submitted; whether it has ended within so many seconds."""
        self._jobs.put(None)
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.plan.set_running_or_notify_cancel():
                self._began = time.monotonic()
                self._do(job)
                self._began = None

    def _do(self, job: _Job) -> None:
        try:
            plan = self._planner.plan_from(job.states, steps=job.steps, seed=job.seed)
            job.plan.set_result(check_plan(plan, self._planner.spec, job.steps))
        except BaseException as error:  # even SystemExit: a planner does not end a server
            job.plan.set_exception(RemoteFailedError(describe(error)))
