"""Planning in a control session: when to plan, from which states, and which plan to follow."""

import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from nsde_policy.errors import PlanError
from nsde_policy.interface.planner import SPARE_COMMANDS, History, Plan, Planner

from .clock import parse_time
from .faults import Fault, FaultKind, describe_error
from .interpolation import PlanJob, TimedPlan
from .report import SessionRecorder
from .session_config import ResolvedConfig, SessionConfig

RECENT_LATENCIES = 10
"""Number of plans whose longest latency is expected of the next one."""
LONGEST_WAIT_S = 60.0
"""How long a session waits for a plan if its clock stands still, as in a simulation; real seconds."""


@dataclass(frozen=True, eq=False)
class PlanJobResult:
    """Plan of a job, or the exception that the planner raised."""

    job: PlanJob
    plan: Plan | None
    error: BaseException | None
    latency: float
    """Time from request to result, seconds."""
    newest: np.ndarray | None = None
    """Newest state at the time of the request, with encoded frames, (d,); None if encoding failed."""


class PlanWorker(Protocol):
    """Runs the plan jobs of a session, like `worker.PlannerThread`."""

    def submit(self, function: Callable[[], PlanJobResult]) -> Future[PlanJobResult]:
        """Queue a job and return the future of its result."""

    def close(self) -> object:
        """Take no more jobs."""


class PlanScheduler:
    """Requests plans in time, and keeps the current plan and the next one.

    All plans are made by a worker, so that a planner that hangs does not stop the loop: the session waits
    for a plan that it needs now for at most `deadline_s`, and takes it later if it arrives later. If it plans
    ahead, it waits for the first plan only, and for at most one control period.

    If it plans ahead, a plan is requested as many periods before it is needed as planning took recently. It
    starts from the states that the current plan predicts, corrected by its prediction error so far, and
    continues the commands that will have been sent by then:

        period      0 1 2 3 4 5 6 7 8 9 …
        requested   x           x
        planned     x x x x x x x x
        planned                     x x x x x x x x        from the states predicted for period 8

    A method that predicts no states plans from now; commands whose period has passed when the plan arrives
    are dropped.
    """

    def __init__(
        self,
        planner: Planner,
        config: SessionConfig,
        resolved: ResolvedConfig,
        *,
        clock: Callable[[], float],
        worker: PlanWorker,
        recorder: SessionRecorder,
    ) -> None:
        self._planner, self._spec, self._worker = planner, planner.spec, worker
        self._chunk, self._policy_hz = resolved.chunk, resolved.policy_hz
        self._deadline, self._seed = config.deadline_s, config.seed
        self._longest_wait = min(self._deadline, 1 / config.rate_hz) if config.plan_ahead else self._deadline
        self._clock, self._recorder, self._ahead = clock, recorder, config.plan_ahead
        self._latencies: deque[float] = deque(maxlen=RECENT_LATENCIES)
        self._candidates = config.candidates
        self.requested = 0
        """Number of plans requested so far, which is the index of the next."""
        self.pending: tuple[PlanJob, Future[PlanJobResult]] | None = None
        """The plan that has been requested and has not arrived."""
        self.reset()

    def reset(self) -> None:
        """Drop all plans, also one that is being made: the world or the clock has jumped."""
        self.current: TimedPlan | None = None
        self._next: TimedPlan | None = None
        self.newest_state: np.ndarray | None = None
        """Newest state of the last request that has been answered, with encoded frames, (d,)."""
        self._first_valid = self.requested  # plans with a lower index are dropped when they arrive
        self._waiting_since, self._reported_overdue = self._clock(), False
        self._reported_late = -1  # index of the newest plan whose deadline passed while the session waited

    def request_if_due(self, history: History, period: int, *, replan: bool) -> list[Fault]:
        """Request a plan if the current one is about to end or `replan` is set; wait if it is needed now."""
        faults = self.take_plan(period)
        current = self.current
        lead_periods = self._expected_latency() if self._ahead else 0
        if not replan and current is not None and current.end - period > lead_periods:
            return faults
        if self.pending is None and self._next is None:
            job = self._new_job(history, period, lead_periods, replan=replan)
            self._waiting_since, self._reported_overdue = job.requested_at, False
            try:
                self.pending = job, self._worker.submit(lambda: self._plan(job))
            except Exception as error:
                return [*faults, Fault(FaultKind.PLANNER_ERROR, job.requested_at, describe_error(error))]
            faults += self.take_plan(period, wait=current is None or not self._ahead)
        return faults

    def take_plan(self, period: int, *, wait: bool = False) -> list[Fault]:
        """Fetch a plan that has arrived, and switch to the next plan if its period has come."""
        faults: list[Fault] = []
        result = self._wait() if wait else self._fetch(0.0)
        if result is None:
            faults = self._check_late() if wait and not self._ahead else self._check_overdue()
        elif result.job.index >= self._first_valid:
            faults = self._accept(result, period)
        else:
            self._record_fault(result)
        if self._next is not None and period >= self._next.job.start:
            self.current, self._next = self._next, None
        return faults

    def find_next_index(self, *, keep_pending: bool) -> int:
        """Return the index of the first plan to follow after a fault: the next one that is requested.

        A plan that is merely late counts too, unless the session plans ahead: its remaining commands are for
        the right times.
        """
        if keep_pending and not self._ahead and self.pending is not None:
            return self.pending[0].index
        return self.requested

    def close(self) -> None:
        """Release the worker; record a fault of the last plan if it has arrived."""
        if (result := self._fetch(0.0)) is not None:
            self._record_fault(result)
        self._worker.close()

    def _wait(self) -> PlanJobResult | None:
        """Wait for the plan until the session's clock has passed the deadline, has gone back or fails.

        If the clock does not advance, as in a simulation where planning takes no time, wait until the plan
        arrives, so that results do not depend on the speed of the machine.
        """
        ends, before = time.monotonic() + LONGEST_WAIT_S, self._waiting_since
        while True:
            started, timeout_s = time.monotonic(), self._longest_wait - (before - self._waiting_since)
            if not 0 < timeout_s < math.inf or started > ends:
                return self._fetch(0.0)
            timeout_s = min(timeout_s, LONGEST_WAIT_S)
            result, now = self._fetch(timeout_s), self._clock()
            if result is not None or self.pending is None or not now >= before:
                return result
            if time.monotonic() - started < 0.5 * timeout_s:
                return None  # a worker in simulated time does not wait
            before = now

    def _fetch(self, timeout_s: float) -> PlanJobResult | None:
        """Return the result of the pending job if it arrives within a timeout in real seconds."""
        if self.pending is None:
            return None
        job, future = self.pending
        try:
            result = future.result(timeout_s)
            if not isinstance(result, PlanJobResult) or result.job is not job:
                raise PlanError(f"the worker returned {type(result).__name__}, not the result of its job")
        except Exception as error:  # a worker may raise anything
            if isinstance(error, TimeoutError) and not future.done():
                return None
            result = PlanJobResult(job, None, error, 0.0)
        self.pending = None
        return result

    def _check_late(self) -> list[Fault]:
        """Report that a plan that is needed now was not ready by its deadline."""
        if self.pending is None:
            return []
        self._reported_late = self.pending[0].index
        return [Fault(FaultKind.LATE_PLAN, self._clock(), f"no plan within {self._deadline:g} s")]

    def _check_overdue(self) -> list[Fault]:
        """Report once that a plan takes longer to make than it would last."""
        if self.pending is None or self._reported_overdue:
            return []
        now = self._clock()
        if not now - self._waiting_since > self.pending[0].steps / self._policy_hz:
            return []
        self._reported_overdue = True
        detail = f"the worker has been planning for {now - self._waiting_since:.4g} s without a result"
        return [Fault(FaultKind.LATE_PLAN, now, detail)]

    def _record_fault(self, result: PlanJobResult) -> None:
        """Count the fault of a plan that is no longer needed; the session does not react to it."""
        plan = self._to_timed_plan(result)
        if isinstance(plan, Fault):
            self._recorder.record_fault(plan)

    def _expected_latency(self) -> int:
        """Return how many policy periods the next plan is expected to take."""
        longest = max(self._latencies, default=0.0) * self._policy_hz
        return min(max(math.ceil(longest - 1e-6), 1), self._chunk)

    def _new_job(self, history: History, period: int, lead_periods: int, *, replan: bool) -> PlanJob:
        """Create the job of a plan that starts `lead_periods` ahead, as the current plan predicts, or now."""
        predict, previous_action = None, history.last_action
        start, execute, current = period + lead_periods, self._chunk, self.current
        if lead_periods and not replan and current is not None and current.predicts(period, start):
            predict = partial(current.predict_states, from_period=period, to_period=start, spec=self._spec)
            previous_action = current.predict_action(start, self._spec)
        else:
            start, execute = period, self._chunk + lead_periods
        steps = int(min(execute + SPARE_COMMANDS, self._spec.longest_chunk or math.inf))
        self.requested += 1
        return PlanJob(
            index=self.requested - 1,
            history=history.copy(),
            start=start,
            previous_action=previous_action,
            steps=steps,
            execute=min(execute, steps),
            predict=predict,
            requested_at=self._clock(),
        )

    def _plan(self, job: PlanJob) -> PlanJobResult:
        """Plan in the worker; exceptions of the planner, also `SystemExit`, become part of the result.

        Frames are encoded and the seed is derived here because both are slow.
        """
        plan, newest, failure = None, None, None
        try:
            states = job.history.states()
            newest = states[0].copy()
            if job.predict is not None:
                states = job.predict(states)
            seed = int(np.random.SeedSequence([self._seed, job.index]).generate_state(1)[0])
            plan = self._planner.plan_from(states, steps=job.steps, seed=seed, candidates=self._candidates)
        except BaseException as error:
            failure = error
        return PlanJobResult(job, plan, failure, self._clock() - job.requested_at, newest)

    def _accept(self, result: PlanJobResult, period: int) -> list[Fault]:
        """Make a result the current plan, or the next one if it was planned ahead; return its faults."""
        job, now = result.job, self._clock()
        self.newest_state = result.newest
        latency = parse_time(result.latency)
        latency = latency if latency >= 0 else 0.0  # the clock jumped or failed
        was_late = self._reported_late == job.index
        missed = period > job.start if job.ahead else was_late or latency > self._deadline
        if self._ahead and not job.ahead and self.current is not None:
            missed = period > self.current.last  # it is not needed before the current plan ends
        self._latencies.append(latency)
        faults = []
        if missed and not self._ahead and not was_late:
            detail = f"planning took {latency:.4g} s, the deadline is {self._deadline:g} s"
            faults.append(Fault(FaultKind.LATE_PLAN, now, detail))
        plan = self._to_timed_plan(result)
        self._recorder.record_plan(latency, missed=missed)
        if isinstance(plan, Fault):
            return [*faults, plan]
        if plan.last < period:
            detail = f"planning took {latency:.4g} s, all commands of the plan have passed"
            return [*faults, Fault(FaultKind.LATE_PLAN, now, detail)]
        if job.ahead:
            self._next = plan
        else:
            self.current, self._next = plan, None
        return faults

    def _to_timed_plan(self, result: PlanJobResult) -> TimedPlan | Fault:
        if result.error is not None:
            return Fault(FaultKind.PLANNER_ERROR, self._clock(), describe_error(result.error))
        try:
            return TimedPlan.from_plan(result.plan, self._spec, result.job)
        except PlanError as error:
            return Fault(FaultKind.NON_FINITE_PLAN, self._clock(), str(error))
        except Exception as error:  # a plan may be an object of any kind
            return Fault(FaultKind.NON_FINITE_PLAN, self._clock(), describe_error(error))
