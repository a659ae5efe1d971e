"""Control session: a policy in a robot's control loop, with commands that are finite, limited and on time.

It takes any `Planner`: a trained run, an exported graph, or a policy behind a server. No torch.

Once a first command is out, or if the robot's position was given (`initial_command`), `step` returns a
command whatever the planner, the callbacks, the clock, the observation and the worker do; the contract is in
docs/control_loop.md.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Self

import numpy as np

from nsde_policy.errors import PolicyInputError, SessionStoppedError
from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.observation import Observation
from nsde_policy.interface.planner import Planner, check_array

from .clock import (
    EARLY_CALL,
    ROUNDING,
    TIME_TOLERANCE_S,
    TimeGrid,
    freeze_objects,
    read_clock,
)
from .faults import Fault, FaultKind, get_reaction, respond_to_faults
from .inputs import InputMonitor
from .interpolation import PeriodCommands, PlanFollower, TimedPlan
from .limits import Limiter
from .planning import PlanScheduler, PlanWorker
from .report import CommandRecord, SessionRecorder, SessionReport
from .session_config import SessionConfig
from .worker import PlannerThread


class Session:
    """One control loop, which `policy.session()` opens; not thread-safe.

        with policy.session(plan_ahead=True) as session:
            for tick in session.ticks():
                robot.send(session.step(robot.observe(), tick))
        print(session.report().to_text())

    `step` returns one command within the limits, also after faults of sensors, clock or policy.

    Args:
        planner: The policy.
        config: Settings of the loop.
        calibration: Measurements of the demonstrations: rate, limits, out-of-distribution threshold.
        clock: Returns the current time in seconds; all times of the session are on this clock.
        sleep: Waits for a number of seconds, for `ticks`.
        worker: Runs plan jobs; by default a thread of the session.
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
        self._clock, self._sleep = partial(read_clock, clock), sleep
        self._tick_s = 1 / config.rate_hz
        self._increment_std = np.array(spec.increment_std[spec.obs_dim :])
        self._increment_std.setflags(write=False)  # session.last refers to it
        self._recorder = SessionRecorder(spec, calibration)
        worker = PlannerThread() if worker is None else worker
        self._scheduler = PlanScheduler(
            planner, config, resolved, clock=self._clock, worker=worker, recorder=self._recorder
        )
        self._grid = TimeGrid(rate_hz=config.rate_hz, policy_hz=resolved.policy_hz)
        binary, deltas = [column for column, *_ in spec.binary], resolved.delta_columns
        self._periods = PeriodCommands(self._grid, delta_columns=deltas, binary=binary)
        self._follower = PlanFollower(
            policy_hz=resolved.policy_hz, blend=config.blend, delta_columns=deltas, unblended=binary
        )
        self._monitor = InputMonitor(spec, config, resolved, calibration=calibration, planner=planner)
        self.last: CommandRecord | None = None
        """The last command, with its plan, uncertainty and faults."""
        self._is_closed, self._in_use = False, threading.Lock()
        self._resources = ExitStack()
        self._resources.callback(self._scheduler.close)
        self._period = self._observed_period = -1  # newest policy period, and newest with an observation
        self._limiter: Limiter | None = None
        self._last_time: float | None = None  # of the last command
        self._read_at = -math.inf  # newest reading of the clock
        self.reset(resolved.initial_command)

    def step(self, obs: object, t: float | Mapping[str, float] | None = None) -> np.ndarray:
        """Return the command for this control period, (act_dim,). Call it once per control period.

        Actions that are changes per period are zero if it is called again in the same period.

        Args:
            obs: The observation; None if it is missing.
            t: When it was made, on the session's clock; by default now. For a policy with cameras also times
                by name, of `observation.state` and of each camera that has its own.

        Raises:
            PolicyInputError: If there has been no valid observation yet, and no `initial_command` was given;
                or if it is called while it runs, such as by a callback.
            SessionStoppedError: If a fault has stopped the session, or it has been closed.
        """
        if self._is_closed:
            raise SessionStoppedError("the session is closed; open a new one to call step()")
        with self._exclusive():
            self._raise_if_stopped()
            return self._step(obs, t)

    def _step(self, obs: object, t: float | Mapping[str, float] | None) -> np.ndarray:
        now = self._clock()
        faults = self._check_clock(now)
        if math.isnan(now):
            return self._compute_command(now, faults)
        tick = self._grid.find_tick(now, EARLY_CALL)
        command_time = self._grid.tick_time(tick)
        period = max(self._grid.find_period(command_time), self._period)
        faults += self._start_period(period)
        observed, observation_faults = self._monitor.check_observation(
            obs, t, now, period=period, is_new_period=period > self._observed_period
        )
        faults += observation_faults
        if observed is not None:
            self._add_to_history(observed, period, now)
            faults += self._scheduler.request_if_due(self._history, period, replan=self._needs_new_plan)
        faults += self._scheduler.take_plan(period)
        faults += self._score_state(now, is_new=observed is not None)
        done = self._clock()
        if done >= now:
            self._read_at = done  # time that passed in here is no jump of the clock
            if self._grid.find_tick(done) > tick:  # planning took until a later period
                command_time = self._grid.tick_time(self._grid.find_tick(done))
                self._period = max(self._period, self._grid.find_period(command_time))
        return self._compute_command(command_time, faults)

    def ticks(self) -> Iterator[float]:
        """Sleep until each control period and yield its start, without drift."""
        return self._grid.ticks(self._clock, self._sleep)

    def reset(self, position: object = None) -> None:
        """Start a new episode, also after a stop: call it whenever the world jumps. The report continues.

        It forgets plans and observations, but not the command in force, from which the next one moves on.

        Args:
            position: Command at which the robot rests now, (act_dim,), if it was moved since the last
                command, as in a new episode of a simulation: the next command moves on from there. Changes
                per period rest at zero, whatever is given.

        Raises:
            PolicyInputError: If the position is not (act_dim,) finite numbers.
        """
        with self._exclusive():
            if position is not None:
                self._start_limiter(check_array(position, (self.spec.act_dim,), "position"))
            self._stopped: Fault | None = None
            self._grid.origin = math.nan
            self._has_read_clock = False  # time may jump between episodes
            self._monitor.reset()
            self._start_history(None if self._limiter is None else self._limiter.command)
            self._scheduler.reset()
            self._has_followed_plan = False
            self._is_first = True  # after a restart of time: nothing is counted as skipped
            self._reset_periods()

    def report(self) -> SessionReport:
        """Summarize the session so far."""
        return self._recorder.report()

    def close(self) -> None:
        """Release the worker; `step` raises from now on."""
        self._is_closed = True
        self._resources.close()

    def __enter__(self) -> Self:
        if self.config.freeze_gc:
            self._resources.enter_context(freeze_objects())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Raise `PolicyInputError` if the session is in use: it would change in the middle of a command."""
        if not self._in_use.acquire(blocking=False):
            raise PolicyInputError(
                "the session is computing a command: a callback, clock or other thread must not use it then; "
                "return a command from the callback, or reset the session after step()"
            )
        try:
            yield
        finally:
            self._in_use.release()

    # --- Inputs ---

    def _check_clock(self, now: float) -> list[Fault]:
        """Return the fault of a clock that failed (NaN) or jumped; after a jump, time starts again."""
        if math.isnan(now):
            return [Fault(FaultKind.CLOCK_JUMP, now, "the clock did not return a time in seconds")]
        has_read_clock, self._has_read_clock = self._has_read_clock, True
        passed, faults = now - self._read_at, []
        if has_read_clock and not -TIME_TOLERANCE_S <= passed <= self.resolved.max_gap_s:
            faults.append(Fault(FaultKind.CLOCK_JUMP, now, f"the clock moved by {passed:+.4g} s"))
            self._monitor.forget_times_and_frames()
            self._scheduler.reset()
            self._start_history(self._periods.command)
        if faults or math.isnan(self._grid.origin):  # `ticks` has started the periods before the first step
            self._start_grid(now)
            self._reset_periods()
        self._read_at = now
        return faults

    def _start_grid(self, now: float) -> None:
        """Restart the periods at `now`; if the clock went back, no time is known to have passed."""
        self._grid.start(now)
        self._is_first = True
        if self._last_time is not None and now < self._read_at:
            self._last_time = max(now, self._grid.origin) + max(self._last_time - self._read_at, 0.0)

    def _reset_periods(self) -> None:
        self._period = self._observed_period = -1
        self._first_trusted_plan = -1  # plans with a lower index were requested before the last fault
        self._follower.reset()
        self._periods.restart()

    def _start_history(self, command: np.ndarray | None) -> None:
        """Forget all observations, and remember only the last command."""
        self._history = self.spec.new_history()
        self._periods.command = command
        if command is not None:
            self._history.add_action(command)

    def _start_limiter(self, position: np.ndarray) -> None:
        """Start at rest; when the last command was sent no longer matters."""
        self._limiter = Limiter(
            self.resolved.limits,
            position,
            delta_columns=self.resolved.delta_columns,
            binary=self.spec.binary,
        )
        self._last_time = None

    def _start_period(self, period: int) -> list[Fault]:
        """Set the policy period; return a fault if periods passed without an observation."""
        before, self._period = self._period, period
        missed = period - 1 - max(self._observed_period, before)
        if before < 0 or missed <= 0:
            return []
        return [
            Fault(FaultKind.MISSING_OBSERVATION, self._grid.period_start(period), f"for {missed} periods")
        ]

    def _add_to_history(self, obs: Observation, period: int, now: float) -> None:
        """Add the observation of a policy period, and the command before it, to the policy's input."""
        if obs.cameras_changed:  # features of a lost camera jump, and plans from before do not know it
            self._first_trusted_plan = self._scheduler.requested
        if obs.cameras_changed or (self._observed_period >= 0 and period > self._observed_period + 1):
            self._start_history(self._periods.command)
        elif self._periods.command is not None:
            self._history.add_action(self._periods.command)
        encoded = partial(self._monitor.encode, obs, now) if obs.frames else obs.plain
        self._history.add_observation(encoded, plain=obs.plain)
        self._monitor.mark_used()
        self._observed_period = period
        if self._limiter is None:
            self._start_limiter(self._history.last_action)

    def _score_state(self, now: float, *, is_new: bool) -> list[Fault]:
        """Score the newest state; one with frames is known when a plan that encoded them has arrived."""
        state, self._scheduler.newest_state = self._scheduler.newest_state, None
        if not self.spec.cameras:
            state = self._history.states()[0] if is_new else None
        return [] if state is None else self._monitor.score_state(state, now)

    # --- Commands ---

    def _compute_command(self, time: float, faults: list[Fault]) -> np.ndarray:
        """Follow the plan, or react to faults; NaN is the time of a clock that failed."""
        limiter = self._limiter
        if limiter is None:
            raise self._no_command_error(faults)
        elapsed = self._measure_elapsed(time)
        dt = min(elapsed, self._tick_s)  # move for at most one control period, even if some were skipped
        if elapsed > 1.5 * self._tick_s:
            limiter.decay_velocity(elapsed - self._tick_s)
            self._recorder.counts.skipped_ticks += 0 if self._is_first else round(elapsed / self._tick_s) - 1
        plan = self._scheduler.current
        if plan is not None and (math.isnan(time) or self._grid.find_period(time) > plan.last):
            plan = None
        if plan is None and not faults and self._is_plan_late:
            faults = [Fault(FaultKind.LATE_PLAN, time, "no plan is available")]
        if faults:
            source, action = self._react(faults, plan, dt)
        elif plan is None or self._stopped is not None:
            source, action = ("hold" if self._has_followed_plan else "wait"), limiter.brake(dt)
        else:
            self._has_followed_plan = True
            source, action = "plan", self._follower.follow(limiter, plan, self._grid.midpoint(time), dt)
        return self._record(source, time, elapsed, action, faults)

    def _measure_elapsed(self, time: float) -> float:
        """Return how much time has passed since the last command; 0 if it is too little to move."""
        if self._last_time is None:
            return self._tick_s if not math.isnan(time) else 0.0
        elapsed = time - self._last_time
        # A change per period that comes sooner than a call may be early would be a second one.
        shortest = 1 - EARLY_CALL if self.resolved.delta_columns else ROUNDING
        return elapsed if elapsed > shortest * self._tick_s else 0.0  # also if `time` is NaN

    def _react(self, faults: list[Fault], plan: TimedPlan | None, dt: float) -> tuple[str, np.ndarray]:
        """React to faults: stop, call back or hold; then follow only plans that are requested from now on."""
        assert self._limiter is not None
        self._follower.reset()
        source, action, stop = respond_to_faults(faults, self.config.on_fault, self._limiter, dt)
        self._stopped = stop or self._stopped
        only_late = all(fault.kind is FaultKind.LATE_PLAN for fault in faults)
        if plan is None or not only_late:
            self._first_trusted_plan = self._scheduler.find_next_index(keep_pending=only_late)
        return source, action

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
        is_timed = not math.isnan(time)
        period = self._grid.find_period(time) if is_timed else -1
        plan = self._scheduler.current if source == "plan" else None
        action.setflags(write=False)
        self.last = CommandRecord(
            time=time if is_timed else self._last_time or 0.0,
            action=action,
            sigma=self._increment_std if plan is None else plan.accumulated_std(period, self._increment_std),
            ood=self._monitor.ood,
            is_ood=self._monitor.is_ood,
            outside=self._monitor.outside,
            visible=None if any(fault.camera for fault in faults) else self._monitor.visible,
            source=source,
            plan=None if plan is None else plan.job.index,
            faults=tuple(faults),
            lost=self._monitor.lost,
        )
        self._recorder.record_command(self.last, since=0.0 if self._is_first else since)
        self._is_first = False
        if is_timed:
            finished, command = self._periods.period, self._periods.command
            if command is not None and finished is not None and finished != period:
                self._recorder.record_period(finished, command)
            self._periods.update(action, time, plan)
            self._last_time = time if self._last_time is None else max(self._last_time, time)
        return action.copy()
