"""A plan laid out in time, so that it can be asked for the command of any instant; numpy alone."""

import math
from dataclasses import dataclass

import numpy as np

from nsde_policy.errors import PlanError
from nsde_policy.inference.spec import Plan, PolicySpec


@dataclass(frozen=True, eq=False)
class TimedPlan:
    """The commands of one plan on the grid of policy periods, the command in force before it first.

    A policy's command stands for its whole period, so its value belongs to the period's middle. At a higher
    rate the commands in between lie on the straight lines from middle to middle: neither ahead of what the
    policy meant nor behind it, and at the policy's own rate the commands themselves.

        period        |    0    |    1    |    2    |
        policy             x─────────x─────────x
        4 × the rate    x  x  x  x  x  x  x  x  x  x
    """

    index: int
    """How many plans came before it."""
    start: int
    """Policy period of its first command."""
    knots: np.ndarray
    """The command in force before, then those planned, (steps + 1, act_dim)."""
    states: np.ndarray | None
    """The states it expects, the one at `start` first, (steps + 1, d)."""
    spread: np.ndarray | None
    """σ of each command, grown since the plan was made: √Σσ² along it, (steps, act_dim)."""
    use: int
    """Commands to execute before the next plan takes over."""

    @classmethod
    def of(
        cls, plan: Plan, spec: PolicySpec, *, index: int, start: int, in_force: np.ndarray, use: int
    ) -> "TimedPlan":
        """Lay out a plan; raises `PlanError` where it cannot be sent to a robot."""
        actions = np.asarray(plan.actions, dtype=np.float64)
        if actions.ndim != 2 or actions.shape[1] != spec.act_dim or not len(actions):
            raise PlanError(f"a plan holds commands (steps, {spec.act_dim}), got {actions.shape}")
        if not np.isfinite(actions).all():
            raise PlanError("the planned commands are not finite")
        states = None if plan.states is None else np.asarray(plan.states, dtype=np.float64)
        if states is not None and not np.isfinite(states).all():
            raise PlanError("the foreseen states are not finite")
        if states is not None and states.shape != (len(actions) + 1, spec.obs_dim + spec.act_dim):
            raise PlanError(
                f"a plan of {len(actions)} commands cannot foresee states of shape {states.shape}"
            )
        std = None if plan.std is None else np.asarray(plan.std, dtype=np.float64)
        if std is not None and (std.shape != actions.shape or not np.isfinite(std).all()):
            raise PlanError(f"σ of each command is finite and of shape {actions.shape}, got {std.shape}")
        spread = None if std is None else np.sqrt(np.square(std).cumsum(axis=0))
        if spread is not None:
            spread.setflags(write=False)  # commands are told rows of it
        return cls(index, start, np.concatenate([in_force[None], actions]), states, spread, use)

    @property
    def end(self) -> int:
        """Policy period in which the next plan should take over."""
        return self.start + self.use

    @property
    def last(self) -> int:
        """Policy period of its last command."""
        return self.start + len(self.knots) - 2

    def command(self, period: float) -> np.ndarray:
        """The command at a moment counted in policy periods, fractions included, on the time of the middles,
        (act_dim,); before its first command the one in force, beyond its end the last one.
        """
        place = min(max(period - self.start + 1, 0.0), len(self.knots) - 1.0)
        before = min(int(place), len(self.knots) - 2)
        line: np.ndarray = self.knots[before] + (place - before) * (
            self.knots[before + 1] - self.knots[before]
        )
        return line

    def sigma(self, period: float, prior: np.ndarray) -> np.ndarray:
        """σ of the command of a period, grown since the plan was made, (act_dim,).

        `prior` is the σ of one period where a method tells none: what commands change in demonstrations.
        """
        passed = min(max(int(period - self.start) + 1, 1), len(self.knots) - 1)
        grown: np.ndarray = prior * math.sqrt(passed) if self.spread is None else self.spread[passed - 1]
        return grown


def foreseen(
    current: TimedPlan, memory_states: np.ndarray, now: int, then: int, spec: PolicySpec
) -> np.ndarray | None:
    """States newest first that the robot will have in period `then`, (history, d), as a policy is shown them.

    What the current plan expects, moved by what its expectation for `now` was wrong by; None where it does
    not reach so far. `memory_states` are those up to `now`, newest first.
    """
    if current.states is None or not current.start <= now <= then <= current.start + len(current.states) - 1:
        return None
    wrong = memory_states[0, : spec.obs_dim] - current.states[now - current.start, : spec.obs_dim]
    angles = [column for column in spec.circular if column < spec.obs_dim]
    wrong[angles] = (wrong[angles] + np.pi) % (2 * np.pi) - np.pi
    coming = current.states[now - current.start + 1 : then - current.start + 1].copy()
    coming[:, : spec.obs_dim] += wrong
    return np.concatenate([coming[::-1], memory_states])[: spec.history].astype(np.float32)
