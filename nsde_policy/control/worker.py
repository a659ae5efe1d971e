"""Plan jobs of a control session, and the worker thread that runs them while the loop goes on."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from nsde_policy.inference.spec import Plan, Planner
from nsde_policy.inference.worker import PlannerThread


@dataclass(frozen=True, eq=False)
class PlanJob:
    """A plan to make: from which states, for which periods."""

    index: int
    """How many plans were requested before."""
    states: np.ndarray
    """States that the policy plans from, newest first, (history, d)."""
    steps: int
    base_seed: int
    """Seed of the session, from which the seed of each plan is derived."""
    start: int
    """Policy period of the plan's first command."""
    previous_action: np.ndarray
    """The command of the period before `start`, (act_dim,)."""
    use: int
    """Commands to execute before the next plan takes over."""
    ahead: bool
    """Whether `start` was still in the future at the time of the request."""
    requested_at: float
    """Time of the request on the session's clock, seconds."""

    @property
    def seed(self) -> int:
        """Seed of this plan; computed in the worker, because `SeedSequence` is slow."""
        return int(np.random.SeedSequence([self.base_seed, self.index]).generate_state(1)[0])

    def run(self, planner: Planner, clock: Callable[[], float]) -> "PlanResult":
        """Plan now; an exception of the planner becomes part of the result."""
        try:
            plan = planner.plan_from(self.states, steps=self.steps, seed=self.seed)
        except Exception as error:  # any kind: networks, graphs and connections raise their own
            return PlanResult(self, None, error, clock() - self.requested_at)
        return PlanResult(self, plan, None, clock() - self.requested_at)


@dataclass(frozen=True, eq=False)
class PlanResult:
    """The plan of a job, or the exception that the planner raised."""

    job: PlanJob
    plan: Plan | None
    error: BaseException | None
    latency: float
    """From request to result, seconds."""


class PlanWorker(Protocol):
    """Runs one plan job at a time beside the control loop."""

    def submit(self, job: PlanJob) -> None:
        """Start a job; the session submits the next one only after it has the result."""

    def result(self, timeout_s: float) -> PlanResult | None:
        """Return the result, or None if it is not there within the timeout."""

    def close(self) -> None:
        """Release the worker without waiting for a running job."""


class ThreadWorker:
    """A `PlanWorker` in real time, on a `PlannerThread`."""

    def __init__(self, planner: Planner, clock: Callable[[], float]) -> None:
        self._planner, self._clock = planner, clock
        self._thread = PlannerThread()
        self._future: Future[PlanResult] | None = None

    def submit(self, job: PlanJob) -> None:
        """Queue a job in the thread."""
        self._future = self._thread.submit(lambda: self._run(job))

    def result(self, timeout_s: float) -> PlanResult | None:
        """Return the result, or None if it is not there within the timeout."""
        if self._future is None:
            return None
        try:
            result = self._future.result(timeout_s)
        except TimeoutError:
            return None
        self._future = None
        return result

    def close(self) -> None:
        """End the thread after the running job, without waiting for it."""
        self._thread.close()

    def _run(self, job: PlanJob) -> PlanResult:
        try:
            return job.run(self._planner, self._clock)
        except BaseException as error:  # SystemExit must not reach the control loop either
            return PlanResult(job, None, error, self._clock() - job.requested_at)
