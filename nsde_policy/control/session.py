"""A policy inside a robot's control loop: commands that are finite, inside limits and on time. No torch.

    with Session(policy, SessionConfig(rate_hz=10)) as session:
        for obs, t in robot:
            robot.send(session.step(obs, t))
    print(session.report().as_text())

It works with whatever is a `Planner`: a trained run, an exported graph, a policy on another machine.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np

from nsde_policy.control.clock import Grid, ticks
from nsde_policy.control.config import SessionConfig
from nsde_policy.control.faults import Fault, FaultKind, reaction_to
from nsde_policy.control.gc import older_objects
from nsde_policy.control.inputs import Watch, seconds
from nsde_policy.control.interpolation import Follower
from nsde_policy.control.limits import Limiter
from nsde_policy.control.planning import Planning
from nsde_policy.control.reaction import react
from nsde_policy.control.report import Recorder, Report, Sent
from nsde_policy.control.worker import PlanWorker, ThreadWorker
from nsde_policy.errors import ConfigError, PolicyInputError, SessionClosedError, SessionStoppedError
from nsde_policy.inference.calibration import Calibration, NoveltyDetector
from nsde_policy.inference.spec import Planner


class Session:
    """One control loop. Not for several threads at once; times are seconds on `clock`."""

    def __init__(
        self,
        planner: Planner,
        config: SessionConfig | None = None,
        *,
        calibration: Calibration | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        worker: PlanWorker | None = None,
    ) -> None:
        self.config = config = config or SessionConfig()
        self.spec = spec = planner.spec
        calibration = (calibration or Calibration.from_spec(spec)).check(spec)
        self._settled = settled = config.filled_in(spec, calibration)
        self._clock, self._sleep = clock, sleep
        self._novelty = NoveltyDetector(calibration, spec)
        if config.fault_when_ood and not self._novelty.is_calibrated:
            raise ConfigError("fault_when_ood needs a calibration: give the run's calibration.json")
        self._prior = np.array(spec.increment_std[spec.obs_dim :])
        self._recorder = Recorder(step=settled.limits.speed / settled.policy_hz, log=config.log)
        if config.plan_ahead and worker is None:
            worker = ThreadWorker(planner, clock)
        self._planning = Planning(
            planner,
            chunk=settled.chunk,
            policy_hz=settled.policy_hz,
            deadline_s=config.deadline_s,
            seed=config.seed,
            clock=clock,
            worker=worker if config.plan_ahead else None,
            recorder=self._recorder,
        )
        self._grid = Grid(rate_hz=config.rate_hz, policy_hz=settled.policy_hz)
        self._follower = Follower(policy_hz=settled.policy_hz, blend=config.blend)
        self._watch = Watch(
            spec, max_age_s=settled.max_age_s, max_gap_s=settled.max_gap_s, ahead_s=1 / config.rate_hz
        )
        self.last: Sent | None = None
        """The last command, with all that is known of it."""
        self._spares_gc = self._closed = False
        self._period = self._observed = -1  # the newest policy period, and the newest that was observed
        self.reset()

    # --- For the robot's loop ---

    def step(self, obs: Any, t: float | None = None) -> np.ndarray:
        """The command for this control period, (act_dim,), after an observation made at `t` (by default now).

        Call it once per control period; None stands for an observation that did not come.
        """
        if self._closed:
            raise SessionClosedError("the session has been closed and takes no step; open another")
        self._refuse_if_stopped()
        now = self._clock()
        faults = self._check_clock(now)
        instant = self._grid.instant(self._grid.tick(now))
        period = max(self._grid.period(instant), self._period)
        faults += self._new_period(period)
        faults += self._receive(obs, now if t is None else seconds(t), now, period)
        faults += self._planning.collect(period)
        done = self._clock()
        self._watch.waited(done)
        if self._grid.begun(done) > self._grid.tick(now):
            instant = self._grid.instant(self._grid.begun(done))
            self._period = max(self._period, self._grid.period(instant))
        return self._send(instant, faults)

    def action_at(self, t: float) -> np.ndarray:
        """The command for an instant between two observations, (act_dim,), from the plan there is.

        What it returns counts as sent. Instants only go forward: an earlier one gets the last command again.
        It also answers after `close`, as long as the plan lasts.
        """
        self._refuse_if_stopped()
        now = self._clock()
        faults = self._check_clock(now)
        reach, t = 1 / self._settled.policy_hz, seconds(t)
        if not now - reach <= t <= now + reach:
            faults.append(Fault(FaultKind.CLOCK_JUMP, now, f"a command for {t!r} was asked for at {now:.6g}"))
            t = now
        faults += [fault for fault in [self._watch.age(now, reach)] if fault is not None]
        faults += self._planning.collect(self._grid.period(t))
        return self._send(t, faults)

    def ticks(self) -> Iterator[float]:
        """Wait for each control period in turn, without drift; yields when it began."""
        return ticks(self._grid, self._clock, self._sleep)

    def reset(self) -> None:
        """Forget the episode, also a stop: call it whenever the world jumps. The report goes on."""
        self._stopped: Fault | None = None
        self._limiter: Limiter | None = None
        self._grid.origin = None
        self._watch.reset()
        self._start_memory(None)
        self._planning.forget()
        self._ood: float | None = None
        self._instant: float | None = None
        self._had_a_plan = False
        self._start_periods()

    def report(self) -> Report:
        """How the session went so far."""
        return self._recorder.report()

    def close(self) -> None:
        """Let the worker go and finish the log; `step` takes no observation any more."""
        self._closed = True
        self._planning.close()
        self._recorder.close()
        if self._spares_gc:
            self._spares_gc = False
            older_objects.end()

    def __enter__(self) -> Self:
        if self.config.spare_gc and not self._spares_gc:
            self._spares_gc = True
            older_objects.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- What comes in ---

    def _check_clock(self, now: float) -> list[Fault]:
        jump = self._watch.clock(now)
        if jump is not None:
            self._planning.forget()
            self._start_memory(self._period_command)
            self._instant = now - 1 / self.config.rate_hz
        if jump is not None or self._grid.origin is None:
            self._grid.anchor(now)
            self._start_periods()
        return [] if jump is None else [jump]

    def _start_periods(self) -> None:
        self._period = self._observed = -1
        self._distrust = -1
        self._follower.let_go()
        self._middle: tuple[int, np.ndarray, int | None] | None = None

    def _start_memory(self, action: np.ndarray | None) -> None:
        """Remember nothing but the command in force."""
        self._memory = self.spec.new_history()
        self._period_command = self.config.in_force if action is None else action
        if self._period_command is not None:
            self._memory.add_action(self._period_command)

    def _new_period(self, period: int) -> list[Fault]:
        """Note that periods of the policy have begun; those without any observation are faults."""
        before, self._period = self._period, period
        missed = period - 1 - max(self._observed, before)
        if before < 0 or missed <= 0:
            return []
        return [
            Fault(FaultKind.MISSING_OBSERVATION, self._grid.period_begins(period), f"for {missed} periods")
        ]

    def _receive(self, obs: Any, t: float, now: float, period: int) -> list[Fault]:
        new = period > self._observed
        if obs is None:
            return [Fault(FaultKind.MISSING_OBSERVATION, now, "for this period")] if new else []
        values, faults = self._watch.observation(obs, t, now, for_a_new_period=new)
        if values is None or not new:
            return faults
        return self._take_in(values, period, now)

    def _take_in(self, obs: np.ndarray, period: int, now: float) -> list[Fault]:
        """Remember the observation of a policy period, and plan where it is time."""
        if self._observed >= 0 and period > self._observed + 1:
            self._start_memory(self._period_command)
        elif self._period_command is not None:
            self._memory.add_action(self._period_command)
        self._memory.add_observation(obs)
        self._watch.use()
        self._observed = period
        if self._limiter is None:
            self._limiter = Limiter(self._settled.limits, self._memory.last_action)
        self._ood = self._novelty.distance(self._memory.states()[0])
        faults = self._planning.observed(self._memory, period, anew=self._recovering)
        if self.config.fault_when_ood and self._novelty.is_novel(self._ood):
            faults.append(Fault(FaultKind.UNFAMILIAR_STATE, now, f"distance {self._ood or 0.0:.3g}"))
        return faults

    # --- What goes out ---

    def _send(self, instant: float, faults: list[Fault]) -> np.ndarray:
        limiter, plan = self._limiter, self._planning.current
        if limiter is None:
            raise self._nothing_to_hold(faults)
        since = 1 / self.config.rate_hz if self._instant is None else max(instant - self._instant, 0.0)
        dt = self._pass_time(limiter, since)
        if plan is not None and self._grid.period(instant) > plan.last:
            plan = None
        if plan is None and not faults and self._is_late:
            faults = [Fault(FaultKind.LATE_PLAN, instant, "no plan is there to follow")]
        if faults:
            self._follower.let_go()
            source, action, stop, failed = react(faults, self.config.on_fault, limiter, dt)
            faults = faults if failed is None else [*faults, failed]
            self._stopped = stop or self._stopped
            if plan is None or any(fault.kind is not FaultKind.LATE_PLAN for fault in faults):
                self._distrust = self._planning.asked
        elif plan is None or self._stopped is not None:
            source, action = ("hold" if self._had_a_plan else "wait"), limiter.hold(dt)
        else:
            self._had_a_plan = True
            place = self._grid.middle(instant)
            source, action = "plan", self._follower.follow(limiter, plan, place, dt)
        return self._record(source, instant, since, action, faults)

    @property
    def _is_late(self) -> bool:
        """Whether it is news that no plan is there: not while the first is made, nor once after a fault."""
        waiting = self._planning.waiting and not self._had_a_plan
        return not (waiting or self._recovering or self._stopped is not None)

    @property
    def _recovering(self) -> bool:
        """Whether no plan was made since the last fault."""
        plan = self._planning.current
        return self._distrust > (-1 if plan is None else plan.index)

    def _refuse_if_stopped(self) -> None:
        if self._stopped is not None and (self._limiter is None or self._limiter.at_rest):
            raise SessionStoppedError(
                f"the session stopped: {self._stopped.kind}, {self._stopped.detail}; see to it, then reset()"
            )

    def _nothing_to_hold(self, faults: list[Fault]) -> PolicyInputError:
        """Before the first good observation no command is known to be safe, so none is sent."""
        for fault in faults:
            self._recorder.noted(fault)
            if reaction_to(self.config.on_fault, fault.kind) == "stop":
                self._stopped = fault
        reason = "; ".join(f"{fault.kind}, {fault.detail}" for fault in faults) or "nothing was observed yet"
        return PolicyInputError(f"no command before the first good observation: {reason}")

    def _pass_time(self, limiter: Limiter, since: float) -> float:
        """Seconds to move the command for: at most one control period, whatever was skipped."""
        tick = 1 / self.config.rate_hz
        if since > 1.5 * tick:
            limiter.rest(since - tick)
            self._recorder.skipped(round(since / tick) - 1)
        return min(since, tick)

    def _record(
        self, source: str, instant: float, since: float, action: np.ndarray, faults: list[Fault]
    ) -> np.ndarray:
        period = self._grid.period(instant)
        plan = self._planning.current if source == "plan" else None
        sigma = self._prior if plan is None else plan.sigma(period, self._prior)
        sent = Sent(
            time=instant,
            action=action,
            sigma=sigma,
            ood=self._ood,
            is_ood=self._novelty.is_novel(self._ood),
            source=source,
            plan=None if plan is None else plan.index,
            planned_for=None if plan is None else self._grid.period_begins(period),
            faults=tuple(faults),
        )
        self._recorder.sent(sent, since=0.0 if self._instant is None else since)
        self._remember_middle(sent, period)
        self._instant = instant if self._instant is None else max(self._instant, instant)
        self.last = sent
        return action.copy()

    def _remember_middle(self, sent: Sent, period: int) -> None:
        """Keep the command sent nearest to the middle of each policy period, which is the policy's own."""
        half_a_tick = 0.5 * self._settled.policy_hz / self.config.rate_hz
        if self._middle is not None and self._middle[0] != period:
            self._recorder.period_ended(*self._middle)
            self._middle = None
        if self._middle is None or self._grid.middle(sent.time) <= period + half_a_tick + 1e-9:
            self._middle = period, sent.action, sent.plan
            self._period_command = sent.action
