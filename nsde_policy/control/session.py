"""Control session: a policy in a robot's control loop, with commands that are finite, limited and on time.

    with Session(policy, SessionConfig(rate_hz=10)) as session:
        for obs, t in robot:
            robot.send(session.step(obs, t))
    print(session.report().to_text())

It takes any `Planner`: a trained run, an exported graph, or a policy behind a server. No torch.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from nsde_policy.control.clock import EARLY_CALL, TimeGrid
from nsde_policy.control.config import SessionConfig
from nsde_policy.control.faults import Fault, FaultKind, get_reaction, respond_to_faults
from nsde_policy.control.gc import freeze_objects
from nsde_policy.control.inputs import InputMonitor, parse_time
from nsde_policy.control.interpolation import PlanFollower
from nsde_policy.control.limits import Limiter
from nsde_policy.control.planning import PlanScheduler, PlanWorker
from nsde_policy.control.report import CommandRecord, Recorder, SessionReport
from nsde_policy.errors import ConfigError, PolicyInputError, SessionClosedError, SessionStoppedError
from nsde_policy.inference.calibration import Calibration, OODDetector
from nsde_policy.inference.spec import Planner
from nsde_policy.inference.worker import PlannerThread


class Session:
    """One control loop; not thread-safe.

    Args:
        planner: The policy.
        config: Settings of the loop.
        calibration: Measurements of the demonstrations: rate, limits, out-of-distribution threshold.
        clock: Returns the current time in seconds; all times of the session are on this clock.
        sleep: Waits for a number of seconds, for `ticks`.
        worker: Runs plan jobs if `plan_ahead` is set; by default a `PlannerThread`.
    """

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
        self.resolved = resolved = config.resolve(spec, calibration)
        """Limits, policy rate and other values that depend on the policy."""
        self._clock, self._sleep = clock, sleep
        self._tick_s = 1 / config.rate_hz
        self._ood_detector = OODDetector(calibration, spec)
        if config.fault_when_ood and not self._ood_detector.is_calibrated:
            raise ConfigError("fault_when_ood needs a calibration: give the run's calibration.json")
        self._increment_std = np.array(spec.increment_std[spec.obs_dim :])
        self._recorder = Recorder(step=resolved.limits.speed / resolved.policy_hz, log=config.log)
        worker = (worker or PlannerThread()) if config.plan_ahead else None
        self._scheduler = PlanScheduler(
            planner, config, resolved, clock=clock, worker=worker, recorder=self._recorder
        )
        self._grid = TimeGrid(rate_hz=config.rate_hz, policy_hz=resolved.policy_hz)
        self._follower = PlanFollower(
            policy_hz=resolved.policy_hz, blend=config.blend, delta_columns=resolved.delta_columns
        )
        self._monitor = InputMonitor(spec, resolved, max_ahead_s=self._tick_s)
        self.last: CommandRecord | None = None
        """The last command, with its plan, uncertainty and faults."""
        self._is_closed = False
        self._resources = ExitStack()
        self._resources.callback(self._recorder.close)
        self._resources.callback(self._scheduler.close)
        self._period = self._observed_period = -1  # newest policy period, and newest with an observation
        self.reset()

    def step(self, obs: Any, t: float | None = None) -> np.ndarray:
        """Return the command for this control period, (act_dim,). Call it once per control period.

        Args:
            obs: The observation; None if it is missing.
            t: When it was made, on the session's clock; by default now.

        Raises:
            PolicyInputError: If there has been no valid observation yet.
            SessionStoppedError: If a fault has stopped the session.
            SessionClosedError: If the session has been closed.
        """
        if self._is_closed:
            raise SessionClosedError("the session is closed; open a new one to call step()")
        self._raise_if_stopped()
        now = self._clock()
        faults = self._check_clock(now)
        tick = self._grid.find_tick(now, EARLY_CALL)
        time = self._grid.tick_time(tick)
        period = max(self._grid.find_period(time), self._period)
        faults += self._start_period(period)
        faults += self._receive(obs, now if t is None else parse_time(t), now, period)
        faults += self._scheduler.collect(period)
        done = self._clock()
        self._monitor.advance_clock(done)
        if self._grid.find_tick(done) > tick:  # planning took until a later period
            time = self._grid.tick_time(self._grid.find_tick(done))
            self._period = max(self._period, self._grid.find_period(time))
        return self._send(time, faults)

    def action_at(self, t: float) -> np.ndarray:
        """Return the command for a time between two observations, (act_dim,), from the current plan.

        It counts as sent. Times only go forward: for an earlier time the last command is returned again. Also
        works after `close`, as long as the plan lasts.

        Raises:
            ConfigError: If actions are changes per period, which only `step` sends exactly once.
        """
        if self.resolved.delta_columns:
            raise ConfigError(
                f"actions {', '.join(map(str, self.resolved.delta_columns))} of this policy are changes per "
                "period, which cannot be sent between two periods; call step() once per period"
            )
        self._raise_if_stopped()
        now = self._clock()
        faults = self._check_clock(now)
        reach, t = 1 / self.resolved.policy_hz, parse_time(t)
        if not now - reach <= t <= now + reach:
            detail = f"a command for time {t!r} was requested at {now:.6g}"
            faults.append(Fault(FaultKind.CLOCK_JUMP, now, detail))
            t = now
        faults += self._monitor.check_age(now, reach)
        faults += self._scheduler.collect(self._grid.find_period(t))
        return self._send(t, faults)

    def ticks(self) -> Iterator[float]:
        """Sleep until each control period and yield its start, without drift."""
        return self._grid.ticks(self._clock, self._sleep)

    def reset(self) -> None:
        """Start a new episode, also after a stop: call it whenever the world jumps. The report continues."""
        self._stopped: Fault | None = None
        self._limiter: Limiter | None = None
        self._grid.origin = math.nan
        self._monitor.reset()
        self._start_history(self.config.initial_command)
        self._scheduler.reset()
        self._ood: float | None = None
        self._last_time: float | None = None
        self._has_followed_plan = False
        self._reset_periods()

    def report(self) -> SessionReport:
        """Summarize the session so far."""
        return self._recorder.report()

    def close(self) -> None:
        """Release the worker and close the log; `step` raises from now on."""
        self._is_closed = True
        self._resources.close()

    def __enter__(self) -> Self:
        if self.config.freeze_gc:
            self._resources.enter_context(freeze_objects())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Inputs ---

    def _check_clock(self, now: float) -> list[Fault]:
        jump = self._monitor.check_clock(now)
        if jump is not None:
            self._scheduler.reset()
            self._start_history(self._period_command)
            self._last_time = now - self._tick_s
        if jump is not None or math.isnan(self._grid.origin):
            self._grid.start(now)
            self._reset_periods()
        return [] if jump is None else [jump]

    def _reset_periods(self) -> None:
        self._period = self._observed_period = -1
        self._first_trusted_plan = -1  # plans with a lower index were requested before the last fault
        self._follower.reset()
        self._period_middle: tuple[int, np.ndarray, int | None] | None = None

    def _start_history(self, command: np.ndarray | None) -> None:
        """Forget all observations, and remember only the last command."""
        self._history = self.spec.new_history()
        self._period_command = self.config.initial_command if command is None else command
        if self._period_command is not None:
            self._history.add_action(self._period_command)

    def _start_period(self, period: int) -> list[Fault]:
        """Set the policy period; return a fault if periods passed without an observation."""
        before, self._period = self._period, period
        missed = period - 1 - max(self._observed_period, before)
        if before < 0 or missed <= 0:
            return []
        time = self._grid.period_time(period)
        return [Fault(FaultKind.MISSING_OBSERVATION, time, f"for {missed} periods")]

    def _receive(self, obs: Any, t: float, now: float, period: int) -> list[Fault]:
        """Check an observation; the first valid one of a policy period goes to the policy."""
        is_new_period = period > self._observed_period
        if obs is None:
            return [Fault(FaultKind.MISSING_OBSERVATION, now, "for this period")] if is_new_period else []
        values, faults = self._monitor.check_observation(obs, t, now, is_new_period=is_new_period)
        if values is None or not is_new_period:
            return faults
        return self._add_observation(values, period, now)

    def _add_observation(self, obs: np.ndarray, period: int, now: float) -> list[Fault]:
        if self._observed_period >= 0 and period > self._observed_period + 1:
            self._start_history(self._period_command)
        elif self._period_command is not None:
            self._history.add_action(self._period_command)
        self._history.add_observation(obs)
        self._monitor.mark_used()
        self._observed_period = period
        if self._limiter is None:
            self._limiter = Limiter(
                self.resolved.limits, self._history.last_action, delta_columns=self.resolved.delta_columns
            )
        self._ood = self._ood_detector.distance(self._history.states()[0])
        faults = self._scheduler.update(self._history, period, replan=self._needs_new_plan)
        if self.config.fault_when_ood and self._ood_detector.is_ood(self._ood):
            faults.append(Fault(FaultKind.OUT_OF_DISTRIBUTION, now, f"distance {self._ood or 0.0:.3g}"))
        return faults

    # --- Commands ---

    def _send(self, time: float, faults: list[Fault]) -> np.ndarray:
        limiter, plan = self._limiter, self._scheduler.current
        if limiter is None:
            raise self._no_command_error(faults)
        since = self._tick_s if self._last_time is None else max(time - self._last_time, 0.0)
        dt = min(since, self._tick_s)  # move for at most one control period, even if some were skipped
        if since > 1.5 * self._tick_s:
            limiter.brake(since - self._tick_s)
            self._recorder.counts.skipped_ticks += round(since / self._tick_s) - 1
        if plan is not None and self._grid.find_period(time) > plan.last:
            plan = None
        if plan is None and not faults and self._is_plan_late:
            faults = [Fault(FaultKind.LATE_PLAN, time, "no plan is available")]
        if faults:
            self._follower.reset()
            source, action, stop = respond_to_faults(faults, self.config.on_fault, limiter, dt)
            self._stopped = stop or self._stopped
            if plan is None or any(fault.kind is not FaultKind.LATE_PLAN for fault in faults):
                self._first_trusted_plan = self._scheduler.requested
        elif plan is None or self._stopped is not None:
            source, action = ("hold" if self._has_followed_plan else "wait"), limiter.hold(dt)
        else:
            self._has_followed_plan = True
            source, action = "plan", self._follower.follow(limiter, plan, self._grid.midpoint(time), dt)
        return self._record(source, time, since, action, faults)

    @property
    def _is_plan_late(self) -> bool:
        """Whether a missing plan is a fault: not during the first plan, and not again after a fault."""
        is_first = self._scheduler.pending is not None and not self._has_followed_plan
        return not (is_first or self._needs_new_plan or self._stopped is not None)

    @property
    def _needs_new_plan(self) -> bool:
        """Whether the current plan was requested before the last fault."""
        plan = self._scheduler.current
        return self._first_trusted_plan > (-1 if plan is None else plan.job.index)

    def _raise_if_stopped(self) -> None:
        """Raise if the session has stopped and the command is at rest; before that, it brakes."""
        if self._stopped is not None and (self._limiter is None or self._limiter.at_rest):
            raise SessionStoppedError(
                f"the session stopped after a fault: {self._stopped.kind}, {self._stopped.detail}; fix the "
                "cause, then call reset()"
            )

    def _no_command_error(self, faults: list[Fault]) -> PolicyInputError:
        """Record faults before the first valid observation: until then no command is known to be safe."""
        for fault in faults:
            self._recorder.record_fault(fault)
            if get_reaction(self.config.on_fault, fault.kind) == "stop":
                self._stopped = fault
        reason = "; ".join(f"{fault.kind}, {fault.detail}" for fault in faults) or "nothing was observed yet"
        return PolicyInputError(f"no command before the first valid observation: {reason}")

    def _record(
        self, source: str, time: float, since: float, action: np.ndarray, faults: list[Fault]
    ) -> np.ndarray:
        period = self._grid.find_period(time)
        plan = self._scheduler.current if source == "plan" else None
        std = self._increment_std
        self.last = CommandRecord(
            time=time,
            action=action,
            sigma=std if plan is None else plan.accumulated_std(period, std),
            ood=self._ood,
            is_ood=self._ood_detector.is_ood(self._ood),
            source=source,
            plan=None if plan is None else plan.job.index,
            planned_for=None if plan is None else self._grid.period_time(period),
            faults=tuple(faults),
        )
        self._recorder.record_command(self.last, since=0.0 if self._last_time is None else since)
        self._update_period_command(self.last, period)
        self._last_time = time if self._last_time is None else max(self._last_time, time)
        return action.copy()

    def _update_period_command(self, command: CommandRecord, period: int) -> None:
        """Keep the command closest to the middle of each policy period: the one that the policy planned."""
        half_tick = 0.5 * self.resolved.policy_hz / self.config.rate_hz
        if self._period_middle is not None and self._period_middle[0] != period:
            self._recorder.record_period(*self._period_middle)
            self._period_middle = None
        if self._period_middle is None or self._grid.midpoint(command.time) <= period + half_tick + 1e-9:
            self._period_middle = period, command.action, command.plan
            self._period_command = command.action
