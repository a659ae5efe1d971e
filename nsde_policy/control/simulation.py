"""Planning on a slow machine, in simulated time: for measurements and tests of the control loop."""

import time
from collections.abc import Callable

import numpy as np

from nsde_policy.control.worker import PlanJob, PlanResult
from nsde_policy.inference.spec import Plan, Planner, PolicySpec


class SimulatedWorker:
    """A worker in simulated time: its answers come a given delay after the question, to the clock's tick."""

    def __init__(self, planner: Planner, clock: Callable[[], float], *, delay_s: float) -> None:
        self._planner, self._clock, self._delay = planner, clock, delay_s
        self._coming: PlanResult | None = None

    def submit(self, job: PlanJob) -> None:
        """Plan at once, and keep the answer until its time."""
        found = job.run(self._planner, self._clock)
        self._coming = PlanResult(job, found.plan, found.error, self._delay)

    def result(self, timeout_s: float) -> PlanResult | None:
        """The answer, where its time has come; simulated time does not wait."""
        coming = self._coming
        if coming is None or self._clock() + 1e-9 < coming.job.requested_at + self._delay:
            return None
        self._coming = None
        return coming

    def close(self) -> None:
        """Forget what was to come."""
        self._coming = None


class DelayedPlanner:
    """A planner on a slow machine: each plan takes so much longer."""

    def __init__(
        self, planner: Planner, delay_s: float, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._planner, self._delay, self._sleep = planner, delay_s, sleep

    @property
    def spec(self) -> PolicySpec:
        """That of the planner within."""
        return self._planner.spec

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        """The same plan, later."""
        self._sleep(self._delay)
        return self._planner.plan_from(states, steps=steps, seed=seed)
