"""Interpolation of commands at any control rate between the commands of a plan, and from plan to plan."""

import math
from dataclasses import dataclass

import numpy as np

from nsde_policy.control.limits import Limiter
from nsde_policy.errors import PlanError
from nsde_policy.inference.spec import Plan, PolicySpec


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

    index: int
    """Number of plans requested before."""
    start: int
    """Policy period of the first command."""
    knots: np.ndarray
    """The command before the plan, then the planned commands, (steps + 1, act_dim)."""
    states: np.ndarray | None
    """Predicted states, the one at `start` first, (steps + 1, d)."""
    std: np.ndarray | None
    """σ of each command, accumulated along the plan as √Σσ², (steps, act_dim)."""
    use: int
    """Commands to execute before the next plan takes over."""

    @classmethod
    def from_plan(
        cls, plan: Plan, spec: PolicySpec, *, index: int, start: int, previous_action: np.ndarray, use: int
    ) -> "TimedPlan":
        """Place a plan on the grid.

        Raises:
            PlanError: If the plan contains NaN or infinity, or has a wrong shape.
        """
        actions = np.asarray(plan.actions, dtype=np.float64)
        if actions.ndim != 2 or actions.shape[1] != spec.act_dim or not len(actions):
            raise PlanError(f"planned commands have shape {actions.shape}, expected (steps, {spec.act_dim})")
        if not np.isfinite(actions).all():
            raise PlanError("planned commands are not finite")
        shapes = {"states": (len(actions) + 1, spec.obs_dim + spec.act_dim), "std": actions.shape}
        extras: dict[str, np.ndarray | None] = {}
        for name, shape in shapes.items():
            given = getattr(plan, name)
            extras[name] = values = None if given is None else np.asarray(given, dtype=np.float64)
            if values is not None and values.shape != shape:
                raise PlanError(f"planned {name} have shape {values.shape}, expected {shape}")
            if values is not None and not np.isfinite(values).all():
                raise PlanError(f"planned {name} are not finite")
        std = extras["std"]
        if std is not None:
            std = np.sqrt(np.square(std).cumsum(axis=0))
            std.setflags(write=False)  # session.last refers to its rows
        knots = np.concatenate([previous_action[None], actions])
        return cls(index, start, knots, extras["states"], std, use)

    @property
    def end(self) -> int:
        """Policy period in which the next plan should take over."""
        return self.start + self.use

    @property
    def last(self) -> int:
        """Policy period of the last command."""
        return self.start + len(self.knots) - 2

    def interpolate(self, position: float) -> np.ndarray:
        """Return the command at a time in policy periods (`TimeGrid.midpoint`), (act_dim,).

        Before the first planned command it tends to the one before the plan; after the last it stays.
        """
        place = min(max(position - self.start + 1, 0.0), len(self.knots) - 1.0)
        k = min(int(place), len(self.knots) - 2)
        command: np.ndarray = self.knots[k] + (place - k) * (self.knots[k + 1] - self.knots[k])
        return command

    def accumulated_std(self, period: int, default: np.ndarray) -> np.ndarray:
        """Return σ of the command of a period, accumulated since the start of the plan, (act_dim,).

        `default` is the σ of one period for methods that do not report it.
        """
        steps = min(max(period - self.start + 1, 1), len(self.knots) - 1)
        std: np.ndarray = default * math.sqrt(steps) if self.std is None else self.std[steps - 1]
        return std

    def predict_states(self, recent: np.ndarray, now: int, then: int, spec: PolicySpec) -> np.ndarray | None:
        """Predict the policy's input in period `then`: states newest first, (history, d).

        The states of the plan are corrected by its prediction error in period `now`; `recent` are the states
        up to then, newest first. None if the plan predicts no states or ends before `then`.
        """
        if self.states is None or not self.start <= now <= then <= self.start + len(self.states) - 1:
            return None
        error = recent[0, : spec.obs_dim] - self.states[now - self.start, : spec.obs_dim]
        angles = [column for column in spec.circular if column < spec.obs_dim]
        error[angles] = (error[angles] + np.pi) % (2 * np.pi) - np.pi
        predicted = self.states[now - self.start + 1 : then - self.start + 1].copy()
        predicted[:, : spec.obs_dim] += error
        return np.concatenate([predicted[::-1], recent])[: spec.history].astype(np.float32)


@dataclass(frozen=True, eq=False)
class _Transition:
    plan: int
    position: float
    offset: np.ndarray


class PlanFollower:
    """Moves a command along plans, without steps from one plan to the next.

    The offset between the command and a new plan fades over `blend` policy periods. It is zero if the plan
    starts at the last command, as those of a Neural SDE do.
    """

    def __init__(self, *, policy_hz: float, blend: float) -> None:
        self._policy_hz, self._blend = policy_hz, blend
        self._transition: _Transition | None = None

    def reset(self) -> None:
        """Forget the plan; the next one, or the same again, is blended into."""
        self._transition = None

    def follow(self, limiter: Limiter, plan: TimedPlan, position: float, dt: float) -> np.ndarray:
        """Move for `dt` seconds to the plan's command at `position` (`TimedPlan.interpolate`), (act_dim,)."""
        before = position - dt * self._policy_hz
        if self._transition is None or self._transition.plan != plan.index:
            self._transition = _Transition(plan.index, before, limiter.command - plan.interpolate(before))
        if dt <= 0:
            return limiter.command
        target = self._blended(plan, self._transition, position)
        return limiter.follow(target, (target - self._blended(plan, self._transition, before)) / dt, dt)

    def _blended(self, plan: TimedPlan, transition: _Transition, position: float) -> np.ndarray:
        passed = position - transition.position
        command = plan.interpolate(position)
        if passed < self._blend:
            command = command + transition.offset * (1 - max(passed, 0.0) / self._blend)
        return command
