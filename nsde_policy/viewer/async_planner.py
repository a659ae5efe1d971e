"""Plans of one lane, made in the planner thread of its policy so that the simulation thread never blocks."""

import time
from concurrent.futures import Future
from typing import NamedTuple

import torch

from nsde_policy.config import Sampling
from nsde_policy.inference.history import History
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Plan
from nsde_policy.inference.worker import PlannerThread


class AsyncPlan(NamedTuple):
    """A plan with the noise state after it."""

    plan: Plan
    noise: torch.Tensor
    """State of the random generator after the plan."""
    seconds: float
    """Time that planning took."""


class AsyncPlanner:
    """Requests one plan at a time from a `PlannerThread`, which several lanes may share.

    After `cancel`, a request that waits in the queue is never run, and the result of one that is running is
    dropped.
    """

    def __init__(self, policy: Policy, thread: PlannerThread) -> None:
        self._policy, self._thread = policy, thread
        self._future: Future[AsyncPlan] | None = None

    @property
    def busy(self) -> bool:
        """Whether a plan has been requested and not been collected."""
        return self._future is not None

    def request(self, history: History, noise: torch.Tensor, chunk: int, sampling: Sampling) -> None:
        """Queue a plan from a copy of `history`, with random numbers from the generator state `noise` on."""
        self.cancel()
        history = history.copy()
        self._future = self._thread.submit(lambda: self._plan(history, noise, chunk, sampling))

    def result(self, timeout_s: float) -> AsyncPlan | None:
        """Return the plan, or None if it is not there within the timeout; raise the planner's exception."""
        if self._future is None:
            return None
        try:
            error = self._future.exception(timeout_s)
        except TimeoutError:
            return None
        future, self._future = self._future, None
        if error is not None:
            raise error
        return future.result()

    def cancel(self) -> None:
        """Drop the requested plan, if any."""
        if self._future is not None:
            self._future.cancel()
            self._future = None

    def _plan(self, history: History, noise: torch.Tensor, chunk: int, sampling: Sampling) -> AsyncPlan:
        generator = torch.Generator()
        generator.set_state(noise)
        started = time.perf_counter()
        plan = self._policy.plan(history, generator=generator, chunk=chunk, sampling=sampling)
        return AsyncPlan(plan, generator.get_state(), time.perf_counter() - started)
