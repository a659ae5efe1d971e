"""Batches of requests: what waits while the planner thread computes is its next batch."""

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeVar

from nsde_policy.control.worker import PlannerThread

Request = TypeVar("Request")
Result = TypeVar("Result")
Kind = TypeVar("Kind", bound=Hashable)


class BatchQueue(Generic[Kind, Request, Result]):
    """Queue in front of a planner thread, which computes requests of one kind together.

    `compute` returns a result or an exception for each request of a batch, `largest` how many requests of a
    kind are computed together, None for any number.
    """

    def __init__(
        self,
        compute: Callable[[Kind, list[Request]], Sequence[Result | Exception]],
        largest: Callable[[Kind], int | None],
    ) -> None:
        self.thread = PlannerThread()
        self._compute = compute
        self._largest = largest
        self._waiting: dict[Future[Result], tuple[Request, Kind, float]] = {}  # in order of arrival
        self.sizes: dict[str, float] = {"batches": 0, "mean_rows": 0.0, "most_rows": 0}
        """How many batches were computed, with how many requests on average and at most."""

    def submit(self, request: Request, kind: Kind, deadline: float) -> Future[Result]:
        """Queue a request until a deadline on `time.monotonic()`; return the future of its result."""
        future: Future[Result] = Future()
        self._waiting[future] = (request, kind, deadline)
        self.thread.submit(self._compute_next)  # finds nothing to do if an earlier batch took the request
        return future

    def _compute_next(self) -> None:
        """Compute a batch of the kind that has waited longest; never a request whose deadline has passed."""
        now = time.monotonic()
        for future, (_, _, due) in [*self._waiting.items()]:
            if future.cancelled() or due <= now:
                del self._waiting[future]
        waiting = self._waiting.copy()
        if not waiting:
            return
        _, kind, _ = next(iter(waiting.values()))
        alike = (future for future, (_, other, _) in waiting.items() if other == kind)
        futures = islice(alike, self._largest(kind))
        batch = {each: self._waiting.pop(each)[0] for each in futures if each.set_running_or_notify_cancel()}
        if not batch:
            return
        for future, result in zip(batch, self._compute(kind, [*batch.values()]), strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        count, mean, most = self.sizes.values()
        mean += (len(batch) - mean) / (count + 1)
        self.sizes = {"batches": count + 1, "mean_rows": mean, "most_rows": max(most, len(batch))}
