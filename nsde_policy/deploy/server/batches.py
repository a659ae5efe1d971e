"""Batches of requests: what waits while the planner thread computes is its next batch."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from nsde_policy.planner.worker import PlannerThread

Request = TypeVar("Request")
Result = TypeVar("Result")
Compute = Callable[[list[Request]], Sequence[Result | Exception]]


class BatchQueue(Generic[Request, Result]):
    """Queue in front of a planner thread, which computes requests of one kind together.

    A kind is a number. `compute` returns a result or an exception for each request of a batch, `largest` how
    many requests of a kind are computed together, None for any number.
    """

    def __init__(self, compute: Compute[Request, Result], largest: Callable[[int], int | None]) -> None:
        self.thread = PlannerThread()
        self._compute = compute
        self._largest = largest
        self._waiting: dict[Future[Result], tuple[Request, int, float]] = {}  # in order of arrival
        self._seconds: dict[tuple[int, int], float] = {}  # by kind and size, a power of two
        self.sizes: dict[str, float] = {"batches": 0, "mean_rows": 0.0, "most_rows": 0}
        """How many batches were computed, with how many requests on average and at most."""

    def submit(self, request: Request, kind: int, deadline: float) -> Future[Result]:
        """Queue a request until a deadline on `time.monotonic()`; return the future of its result."""
        future: Future[Result] = Future()
        self._waiting[future] = (request, kind, deadline)
        self.thread.submit(self._compute_next)  # finds nothing to do if an earlier batch took the request
        return future

    def _compute_next(self) -> None:
        """Compute a batch of the kind that has waited longest; never a request whose deadline has passed."""
        began = time.monotonic()
        for future, (_, _, due) in [*self._waiting.items()]:
            if future.cancelled() or due <= began:
                del self._waiting[future]
        waiting = self._waiting.copy()
        kind = next((kind for _, kind, _ in waiting.values()), 0)
        left_s = {future: due - began for future, (_, other, due) in waiting.items() if other == kind}
        chosen = [each for each in self._choose(kind, left_s) if each.set_running_or_notify_cancel()]
        batch = {future: self._waiting.pop(future)[0] for future in chosen}
        if not batch:
            return
        for future, result in zip(batch, self._compute([*batch.values()]), strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._measure(kind, len(batch), time.monotonic() - began)

    def _choose(self, kind: int, left_s: dict[Future[Result], float]) -> list[Future[Result]]:
        """Choose the batch that answers most requests in the time they have left, the oldest of them first.

        If none can be in time, the oldest is computed, which measures the time again.
        """
        best: list[Future[Result]] = []
        most, size, needed = min(len(left_s), self._largest(kind) or len(left_s)), 1, 0.0
        while size < 2 * most:  # a size that was not measured may be as fast as a smaller one
            needed = max(needed, self._seconds.get((kind, size), 0.0))
            in_time = [future for future, left in left_s.items() if left >= needed][: min(size, most)]
            best = in_time if len(in_time) > len(best) else best
            size *= 2
        return best or [*left_s][:1]

    def _measure(self, kind: int, rows: int, seconds: float) -> None:
        """Update the time of a size and the sizes so far; a time much longer than usual counts less.

        The first batch of a size may be slow, as on a GPU; it counts no longer than two of half the size.
        """
        self._seconds = {key: 0.98 * known for key, known in self._seconds.items()}  # retry slow sizes
        key = kind, 1 << (rows - 1).bit_length()
        half = self._seconds.get((kind, key[1] // 2), math.inf)
        usual = self._seconds.get(key, min(seconds, 2 * half))
        self._seconds[key] = usual + 0.3 * (min(seconds, 2 * usual) - usual)
        count, mean, most = self.sizes.values()
        mean += (rows - mean) / (count + 1)
        self.sizes = {"batches": count + 1, "mean_rows": mean, "most_rows": max(most, rows)}
