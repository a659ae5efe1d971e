"""When a control session plans, from what, and which plan is in force: in the loop, or ahead in a worker."""

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from nsde_policy.control.faults import Fault, FaultKind, one_line
from nsde_policy.control.report import Recorder
from nsde_policy.control.timed_plan import TimedPlan, foreseen
from nsde_policy.control.worker import PlanJob, PlanResult, PlanWorker
from nsde_policy.errors import PlanError
from nsde_policy.inference.history import History
from nsde_policy.inference.spec import Planner

SPARE = 1
"""Commands planned beyond those to be executed: where the next plan is a little late, and to draw the line to
the end of the last period."""
REMEMBERED = 10
"""Latencies that the next one is expected not to exceed."""


class Planning:
    """The plan in force, the one to come, and the question under way.

    Ahead of time, a plan is asked for as many periods before it is needed as planning took lately. It starts
    from the states that the current plan foresees, moved by what it was wrong by so far, and continues the
    commands that will have been sent by then:

        period      0 1 2 3 4 5 6 7 8 9 …
        asked       x           x
        planned     x x x x x x x x
        planned                     x x x x x x x x        from the states foreseen for period 8

    A method that foresees no states plans from now, and what has passed when the plan is there is dropped.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        chunk: int,
        policy_hz: float,
        deadline_s: float,
        seed: int,
        clock: Callable[[], float],
        worker: PlanWorker | None,
        recorder: Recorder,
    ) -> None:
        self._planner, self._spec, self._worker = planner, planner.spec, worker
        self._chunk, self._policy_hz, self._deadline, self._seed = chunk, policy_hz, deadline_s, seed
        self._clock, self._recorder = clock, recorder
        self._latencies: deque[float] = deque(maxlen=REMEMBERED)
        self.asked = 0
        """Plans asked for so far, which is the index of the next."""
        self._void = 0  # answers to questions up to this one are no longer wanted
        self._under_way: PlanJob | None = None
        self._waiting_since = 0.0  # when it was asked, or when its answer was given up
        self._overdue = False  # whether it was said that it does not come
        self.current: TimedPlan | None = None
        self.coming: TimedPlan | None = None

    @property
    def waiting(self) -> bool:
        """Whether a plan is being made."""
        return self._under_way is not None

    def forget(self) -> None:
        """Drop every plan, also the one being made: the world or the clock has jumped."""
        self.current = self.coming = None
        self._void = self.asked
        self._waiting_since, self._overdue = self._clock(), False

    def observed(self, memory: History, period: int, *, anew: bool) -> list[Fault]:
        """Plan, or ask for a plan, where it is time for it; `anew` where the plan in force is not trusted."""
        faults = self.collect(period)
        due = self.current is None or anew
        if self._worker is None:
            if due or self.current is None or period >= self.current.end:
                faults += self._take(self._from_now(memory, period, 0).run(self._planner, self._clock))
            return faults
        lead = self._lead()
        due = due or self.current is None or self.current.end - period <= lead
        if due and self._under_way is None and self.coming is None:
            question = None if anew else self._from_then(memory, period, period + lead)
            self._under_way = question or self._from_now(memory, period, lead)
            self._waiting_since, self._overdue = self._under_way.requested_at, False
            self._worker.submit(self._under_way)
            faults += self.collect(period, patience=self._deadline if self.current is None else 0.0)
        return faults

    def collect(self, period: int, *, patience: float = 0.0) -> list[Fault]:
        """Take in an answer that has come, and let a plan take over whose time has come."""
        faults: list[Fault] = []
        if self._worker is not None and self._under_way is not None:
            answer = self._worker.result(patience)
            if answer is None:
                faults = self._never_coming(self._under_way)
            else:
                self._under_way = None
                faults = self._take(answer, period) if self._wanted(answer) else self._note(answer)
        if self.coming is not None and period >= self.coming.start:
            self.current, self.coming = self.coming, None
        return faults

    def close(self) -> None:
        """Let the worker go; what has gone wrong with a plan that has come meanwhile is still noted."""
        if self._worker is None:
            return
        if self._under_way is not None and (answer := self._worker.result(0.0)) is not None:
            self._under_way = None
            self._note(answer)
        self._worker.close()

    def _wanted(self, answer: PlanResult) -> bool:
        return answer.job.index >= self._void

    def _never_coming(self, question: PlanJob) -> list[Fault]:
        """Say once of a plan that it has not come for as long as it would have lasted."""
        now = self._clock()
        if self._overdue or now - self._waiting_since <= question.steps / self._policy_hz:
            return []
        self._overdue = True
        detail = f"the worker has been planning for {now - self._waiting_since:.4g} s without an answer"
        return [Fault(FaultKind.LATE_PLAN, now, detail)]

    def _note(self, answer: PlanResult) -> list[Fault]:
        """Count what is wrong with a plan that nobody wants any more; it is no reason to hold."""
        found = self._laid_out(answer)
        if isinstance(found, Fault):
            self._recorder.noted(found)
        return []

    def _lead(self) -> int:
        """Periods that planning is expected to take."""
        longest = max(self._latencies, default=0.0) * self._policy_hz
        return min(max(math.ceil(longest - 1e-6), 1), self._chunk)

    def _from_now(self, memory: History, period: int, lead: int) -> PlanJob:
        longest = self._spec.longest_chunk or self._chunk + lead + SPARE
        steps = min(self._chunk + lead + SPARE, longest)
        use = min(self._chunk + lead, steps)
        return self._question(memory.states(), period, memory.last_action, steps=steps, use=use, ahead=False)

    def _from_then(self, memory: History, period: int, start: int) -> PlanJob | None:
        if self.current is None:
            return None
        states = foreseen(self.current, memory.states(), period, start, self._spec)
        if states is None:
            return None
        steps = min(self._chunk + SPARE, self._spec.longest_chunk or self._chunk + SPARE)
        in_force = states[0, self._spec.obs_dim :].astype(np.float64)
        return self._question(states, start, in_force, steps=steps, use=min(self._chunk, steps), ahead=True)

    def _question(
        self, states: np.ndarray, start: int, in_force: np.ndarray, *, steps: int, use: int, ahead: bool
    ) -> PlanJob:
        self.asked += 1
        return PlanJob(
            index=self.asked - 1,
            states=states,
            steps=steps,
            base_seed=self._seed,
            start=start,
            previous_action=in_force,
            use=use,
            ahead=ahead,
            requested_at=self._clock(),
        )

    def _take(self, answer: PlanResult, period: int | None = None) -> list[Fault]:
        """Lay out the answer as a plan; what is wrong with it comes back as faults."""
        question, now = answer.job, self._clock()
        if question.ahead:
            missed = period is not None and period > question.start
        else:
            missed = answer.latency > self._deadline
        self._latencies.append(answer.latency)
        self._recorder.planned(answer.latency, missed=missed)
        faults = []
        if missed and self._worker is None:
            detail = f"planning took {answer.latency:.4g} s, the deadline is {self._deadline:g} s"
            faults.append(Fault(FaultKind.LATE_PLAN, now, detail))
        plan = self._laid_out(answer)
        if isinstance(plan, Fault):
            return [*faults, plan]
        if period is not None and plan.last < period:
            detail = f"planning took {answer.latency:.4g} s, every command of the plan has passed"
            return [*faults, Fault(FaultKind.LATE_PLAN, now, detail)]
        if question.ahead:
            self.coming = plan
        else:
            self.current, self.coming = plan, None
        return faults

    def _laid_out(self, answer: PlanResult) -> TimedPlan | Fault:
        """The plan in time, or what is wrong with it."""
        question = answer.job
        if answer.plan is None:
            return Fault(FaultKind.PLANNER_ERROR, self._clock(), one_line(answer.error))
        try:
            return TimedPlan.of(
                answer.plan,
                self._spec,
                index=question.index,
                start=question.start,
                in_force=question.previous_action,
                use=question.use,
            )
        except PlanError as error:
            return Fault(FaultKind.NON_FINITE_PLAN, self._clock(), str(error))
