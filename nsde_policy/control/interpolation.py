"""Interpolation of commands at any control rate between the commands of a plan, and from plan to plan."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nsde_policy.core.spec import wrap_angle
from nsde_policy.errors import PlanError
from nsde_policy.interface.planner import History, PolicySpec, check_plan, is_finite

from .clock import TimeGrid
from .limits import Limiter


@dataclass(frozen=True, eq=False)
class PlanJob:
    """Request for a plan from given states."""

    index: int
    """Number of plans requested before."""
    history: History
    """States up to the time of the request; frames in them are not encoded yet."""
    start: int
    """Policy period of the first command."""
    previous_action: np.ndarray
    """Command of the period before `start`, (act_dim,)."""
    steps: int
    execute: int
    """Commands to execute before the next plan takes over."""
    predict: Callable[[np.ndarray], np.ndarray] | None
    """Predicts the states at `start` from the present ones; None if `start` is the present."""
    requested_at: float
    """Time of the request on the session's clock, seconds."""

    @property
    def ahead(self) -> bool:
        """Whether `start` was in the future at the time of the request."""
        return self.predict is not None


@dataclass(frozen=True, eq=False)
class TimedPlan:
    """Plan on the time grid of policy periods.

    A policy's command holds for its whole period, so its value belongs to the middle of the period. At higher
    control rates, commands are interpolated linearly between the middles; at the policy's rate they are the
    planned commands.

        period        |    0    |    1    |    2    |
        policy             x─────────x─────────x
        4 × the rate    x  x  x  x  x  x  x  x  x  x
    """

    job: PlanJob
    knots: np.ndarray
    """The command before the plan, then the planned commands, (steps + 1, act_dim)."""
    states: np.ndarray | None
    """Predicted states, the one at `job.start` first, (steps + 1, d)."""
    std: np.ndarray | None
    """σ of each command, accumulated along the plan as √Σσ², (steps, act_dim)."""

    @classmethod
    def from_plan(cls, plan: object, spec: PolicySpec, job: PlanJob) -> "TimedPlan":
        """Place a plan on the grid, or raise as `check_plan`."""
        actions, states, std, _ = check_plan(plan, spec)
        if std is not None:
            std = np.sqrt(np.square(std).cumsum(axis=0))
            std.setflags(write=False)  # session.last refers to its rows
        knots = np.concatenate([job.previous_action[None], actions])
        return cls(job, knots, states, std)

    @property
    def end(self) -> int:
        """Policy period in which the next plan should take over."""
        return self.job.start + self.job.execute

    @property
    def last(self) -> int:
        """Policy period of the last command."""
        return self.job.start + len(self.knots) - 2

    def interpolate(self, position: float) -> np.ndarray:
        """Return the command at a time in policy periods (`TimeGrid.midpoint`), (act_dim,).

        Before the first planned command it tends to the one before the plan; after the last it stays.
        """
        place = min(max(position - self.job.start + 1, 0.0), len(self.knots) - 1.0)
        k = min(int(place), len(self.knots) - 2)
        command: np.ndarray = self.knots[k] + (place - k) * (self.knots[k + 1] - self.knots[k])
        return command

    def accumulated_std(self, period: int, default: np.ndarray) -> np.ndarray:
        """Return σ of the command of a period, accumulated since the start of the plan, (act_dim,).

        `default` is the σ of one period for methods that do not report it.
        """
        steps = min(max(period - self.job.start + 1, 1), len(self.knots) - 1)
        std: np.ndarray = default * math.sqrt(steps) if self.std is None else self.std[steps - 1]
        return std

    def predicts(self, from_period: int, to_period: int) -> bool:
        """Return whether the plan predicts the states of these policy periods, and of all between them."""
        first = self.job.start
        return self.states is not None and first <= from_period <= to_period < first + len(self.states)

    def predict_action(self, period: int, spec: PolicySpec) -> np.ndarray:
        """Return the command before a policy period, (act_dim,), as it is in a predicted state."""
        assert self.states is not None
        command: np.ndarray = self.states[period - self.job.start, spec.obs_dim :].astype(np.float32)
        return command.astype(np.float64)

    def predict_states(
        self, recent: np.ndarray, *, from_period: int, to_period: int, spec: PolicySpec
    ) -> np.ndarray:
        """Predict the policy's input in `to_period`: states newest first, (history, d).

        The states of the plan are corrected by its prediction error in `from_period`; `recent` are the states
        up to that period, newest first. Raise `PlanError` if the result is infinite in float32.
        """
        assert self.states is not None
        first, last = from_period - self.job.start, to_period - self.job.start
        error = recent[0, : spec.obs_dim] - self.states[first, : spec.obs_dim]
        angles = [column for column in spec.circular if column < spec.obs_dim]
        error[angles] = wrap_angle(error[angles])
        predicted = self.states[first + 1 : last + 1].copy()
        predicted[:, : spec.obs_dim] += error
        if not is_finite(predicted):
            raise PlanError("the states predicted by the plan before are not finite in float32")
        return np.concatenate([predicted[::-1], recent])[: spec.history].astype(np.float32)


class PlanFollower:
    """Moves a command along plans, without jumps from one plan to the next.

    The offset between the command and a new plan fades over `blend` policy periods. It is zero if the plan
    starts at the last command, as the plans of a Neural SDE do.

    Changes per period (`delta_columns`) are not blended: the mean of two changes is the movement of neither
    plan. Each is sent once; a second command in the same period changes nothing. Columns in `unblended`, such
    as a gripper's, are not blended either.
    """

    def __init__(
        self,
        *,
        policy_hz: float,
        blend: float,
        delta_columns: Sequence[int] = (),
        unblended: Sequence[int] = (),
    ) -> None:
        self._policy_hz, self._blend, self._deltas = policy_hz, blend, list(delta_columns)
        self._unblended = [*delta_columns, *unblended]
        self._plan: int | None = None
        self._joined_at, self._offset = 0.0, np.zeros(0)

    def reset(self) -> None:
        """Forget the plan; the next one, or the same again, is blended into."""
        self._plan = None

    def follow(self, limiter: Limiter, plan: TimedPlan, position: float, dt: float) -> np.ndarray:
        """Interpolate, blend and limit: return the command, (act_dim,), at `position` in policy periods.

        The limiter moves for `dt` seconds towards the blended plan, and is to arrive at its velocity.
        """
        before = position - dt * self._policy_hz
        if self._plan != plan.job.index:
            self._plan, self._joined_at = plan.job.index, before
            self._offset = limiter.command - plan.interpolate(before)
            self._offset[self._unblended] = 0.0
        if dt <= 0:
            command = limiter.command
            command[self._deltas] = 0.0
            return command
        target = self._blend_into(plan, position)
        return limiter.follow(target, (target - self._blend_into(plan, before)) / dt, dt)

    def _blend_into(self, plan: TimedPlan, position: float) -> np.ndarray:
        passed, command = position - self._joined_at, plan.interpolate(position)
        if self._blend > 0 and passed < self._blend:
            command = command + self._offset * (1 - max(passed, 0.0) / self._blend)
        return command


class PeriodCommands:
    """Keeps the command closest to the middle of each policy period: the one that the policy planned.

    Changes per period (`delta_columns`) of one period add up. Columns of two values (`binary`) are kept as
    planned and not as rounded: `round_binary` says why.
    """

    def __init__(
        self, grid: TimeGrid, *, delta_columns: Sequence[int] = (), binary: Sequence[int] = ()
    ) -> None:
        self._grid, self._deltas, self._binary = grid, list(delta_columns), list(binary)
        self.command: np.ndarray | None = None
        """Command of the newest period, (act_dim,)."""
        self.period: int | None = None
        """Number of that period; None before the first command."""

    def restart(self) -> None:
        """Forget the period: periods are counted from zero again."""
        self.period = None

    def update(self, command: np.ndarray, time: float, plan: TimedPlan | None) -> None:
        """Register a command (act_dim,) that was sent for a time, and the plan that it followed."""
        period, position = self._grid.find_period(time), self._grid.midpoint(time)
        is_same, action = self.period == period, command.copy()
        if plan is not None:
            action[self._binary] = plan.interpolate(position)[self._binary]
        if is_same and self.command is not None:
            action[self._deltas] += self.command[self._deltas]
        half_tick = 0.5 * self._grid.policy_hz / self._grid.rate_hz
        if not is_same or position <= period + half_tick + 1e-9:
            self.period, self.command = period, action
