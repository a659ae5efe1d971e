"""Planning with a given delay in simulated time, for benchmarks and tests of the control loop."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from nsde_policy.control.planning import PlanJobResult
from nsde_policy.interface.planner import Plan, Planner


class DelayedFuture(Future[PlanJobResult]):
    """Future whose result is available from a given time of a simulated clock on."""

    def __init__(self, clock: Callable[[], float], ready_at: float) -> None:
        super().__init__()
        self._simulated_clock, self._ready_at = clock, ready_at

    def done(self) -> bool:
        return self._simulated_clock() + 1e-9 >= self._ready_at

    def result(self, timeout: float | None = None) -> PlanJobResult:
        if not self.done():
            raise TimeoutError  # simulated time does not pass while waiting
        return super().result(timeout)


class SimulatedWorker:
    """Plan worker in simulated time: plans immediately, and delivers the result after a delay."""

    def __init__(self, clock: Callable[[], float], *, delay_s: float) -> None:
        self._clock, self._delay = clock, delay_s

    def submit(self, function: Callable[[], PlanJobResult]) -> Future[PlanJobResult]:
        future = DelayedFuture(self._clock, self._clock() + self._delay)
        future.set_result(dataclasses.replace(function(), latency=self._delay))
        return future

    def close(self) -> None:
        pass


class InlineWorker:
    """Plan worker without a thread: plans when a job is submitted, while the caller waits."""

    def submit(self, function: Callable[[], PlanJobResult]) -> Future[PlanJobResult]:
        future: Future[PlanJobResult] = Future()
        future.set_result(function())
        return future

    def close(self) -> None:
        pass


class DelayedPlanner(Planner):
    """Planner on a slow machine: calls `sleep` before each plan."""

    def __init__(self, planner: Planner, delay_s: float, *, sleep: Callable[[float], None]) -> None:
        self._planner, self._delay, self._sleep = planner, delay_s, sleep
        self.spec = planner.spec

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        self._sleep(self._delay)
        return self._planner.plan_from(states, steps=steps, seed=seed)
