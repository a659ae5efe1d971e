"""How a command follows a plan, and goes over from one plan to the next."""

from dataclasses import dataclass

import numpy as np

from nsde_policy.control.limits import Limiter
from nsde_policy.control.timed_plan import TimedPlan


@dataclass(frozen=True, eq=False)
class _Join:
    plan: int
    place: float
    offset: np.ndarray


class Follower:
    """Moves a command along plans.

    A plan begins where the command is: what lies between the two at the join fades over `blend` policy
    periods. A plan that starts from the command in force, as a Neural SDE's does, has nothing to fade.
    """

    def __init__(self, *, policy_hz: float, blend: float) -> None:
        self._policy_hz, self._blend = policy_hz, blend
        self._join: _Join | None = None

    def let_go(self) -> None:
        """Follow no plan for now; the next one, or the same again, is joined anew."""
        self._join = None

    def follow(self, limiter: Limiter, plan: TimedPlan, place: float, dt: float) -> np.ndarray:
        """Move for `dt` seconds to where the plan is at `place` (see `TimedPlan.command`), (act_dim,)."""
        before = place - dt * self._policy_hz
        if self._join is None or self._join.plan != plan.index:
            self._join = _Join(plan.index, before, limiter.command - plan.command(before))
        if dt <= 0:
            return limiter.command.copy()
        target = self._target(plan, self._join, place)
        return limiter.follow(target, (target - self._target(plan, self._join, before)) / dt, dt)

    def _target(self, plan: TimedPlan, join: _Join, place: float) -> np.ndarray:
        passed = place - join.place
        if passed >= self._blend:
            return plan.command(place)
        faded: np.ndarray = plan.command(place) + join.offset * (1 - max(passed, 0.0) / self._blend)
        return faded
