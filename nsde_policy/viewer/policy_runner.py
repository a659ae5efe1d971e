"""A policy on a table of its own: it plans, a hand may interfere, and every moment can be gone back to."""

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from nsde_policy.envs.pusht.geometry import SIDE
from nsde_policy.errors import PlanError
from nsde_policy.eval.rollout import make_generator
from nsde_policy.inference.history import History
from nsde_policy.inference.policy import Policy
from nsde_policy.inference.spec import Plan
from nsde_policy.inference.worker import PlannerThread
from nsde_policy.viewer.async_planner import AsyncPlanner
from nsde_policy.viewer.controls import Controls
from nsde_policy.viewer.forecast import Fan, drift_field
from nsde_policy.viewer.messages import Hold
from nsde_policy.viewer.simulation import Deed, World


@dataclass(frozen=True)
class Performer:
    """A method that can be put on a table."""

    name: str
    title: str
    policy: Policy
    plan_s: deque[float]
    """How long its last plans took, with the controls as they are."""
    thread: PlannerThread
    """Makes its plans, shared by all lanes that it plays in."""

    @classmethod
    def of(cls, name: str, title: str, policy: Policy) -> "Performer":
        """One that has not planned yet."""
        return cls(name, title, policy, deque(maxlen=50), PlannerThread())

    def latency(self, controls: Controls) -> dict[str, float] | None:
        """Median time of a plan, and network calls; None before the first with these controls."""
        if not self.plan_s:
            return None
        chunk = controls.chunk_of(self.policy)
        calls = self.policy.model.network_calls(chunk, controls.sampling(self.policy))
        return {"ms": round(1e3 * median(self.plan_s), 2), "actions": chunk, "calls": calls}


@dataclass(frozen=True)
class _Mind:
    """What the policy knew at a moment."""

    memory: History
    plan: Plan | None
    used: int
    """Actions of the plan that have been executed."""
    noise: torch.Tensor
    """State of the generator its noise comes from."""


class Lane:
    """Plays as `nsde-policy eval` does: the same seed gives the same episode, until somebody interferes."""

    _plan: Plan | None

    def __init__(self, performer: Performer, seed: int) -> None:
        self.performer, self.policy = performer, performer.policy
        self._planner = AsyncPlanner(performer.policy, performer.thread)
        self.world = World(seed)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start again from a seed."""
        self.world.reset(seed)
        self._noise = make_generator(seed).get_state()
        self._forget()
        self._minds = {0: self._mind()}

    @property
    def solved(self) -> bool:
        """Whether the block lies where it should; the policy then rests."""
        return self.world.now.solved

    def forget_plan(self) -> None:
        """Plan anew at the next period, as after a change of the controls."""
        self._planner.cancel()
        self._plan, self._used = None, 0
        self._minds[self.world.last] = self._mind()

    def leave(self) -> None:
        """Want no more plans."""
        self._planner.cancel()

    def let_go(self) -> None:
        """A hand has changed the world: what was seen before it says nothing of what comes next."""
        self._forget()
        self._minds[self.world.last] = self._mind()

    def thinks(self, controls: Controls, patience_s: float) -> bool:
        """Whether its next command takes longer than that to plan; the plan is begun where it is due."""
        if self.solved or (self._plan is not None and self._used < len(self._plan.actions)):
            return False
        if not self._planner.busy:
            sampling = controls.sampling(self.policy)
            self._planner.request(self._memory, self._noise, controls.chunk_of(self.policy), sampling)
        else:
            patience_s = 0.0  # it has been waited for already
        thought = self._planner.result(patience_s)
        if thought is None:
            return True
        if not np.isfinite(thought.plan.actions).all():
            raise PlanError(f"{self.performer.title} planned something that is not finite; it stands still")
        self._plan, self._used, self._noise = thought.plan, 0, thought.noise
        self.performer.plan_s.append(thought.seconds)
        return False

    def step(self, hand: Hold | None, *, acts: bool = True) -> None:
        """Run one control period; a policy that does not act leaves the agent where it is."""
        if hand is None and (self.solved or not acts):
            self.world.advance(Deed(None))
        else:
            target = self._target(hand, acts and not self.solved)
            carried = (hand.x, hand.y, hand.angle) if hand and hand.what == "block" else None
            self.world.advance(Deed(target, carried))
            self._memory.add_action(target)
            self._memory.add_observation(self.world.now.obs)
        self._minds[self.world.last] = self._mind()
        for gone in range(min(self._minds), self.world.first):
            del self._minds[gone]

    def restore(self, period: int) -> None:
        """Make a moment of the past the present: the table, the memory, the plan and the noise to come."""
        self._planner.cancel()
        self.world.restore(period)
        mind = self._minds[period]
        self._minds = {k: m for k, m in self._minds.items() if k <= period}
        self._memory, self._plan, self._used = mind.memory.copy(), mind.plan, mind.used
        self._noise = mind.noise

    def look(self, controls: Controls, period: int | None = None) -> dict[str, Any]:
        """What is to be drawn of the present, or of a moment of the past."""
        past = period is not None and period < self.world.last
        moment = self.world.at(period) if past and period is not None else self.world.now
        solved_s = self.world.solved_s(self.world.last if period is None else period)
        mind = self._minds[period] if past and period is not None else self._mind()
        trail = [moment.obs.tolist()] if past else self.world.trail
        sampling = controls.sampling(self.policy)
        fan = None if moment.solved else Fan.of(self.policy, mind.memory, sampling, controls.paths)
        field = controls.field and drift_field(self.policy, mind.memory, sampling)
        return {
            "trail": [[round(v, 2) for v in row[:4]] + [round(row[4], 4)] for row in trail],
            "target": [round(float(v), 1) for v in mind.memory.last_action],
            "coverage": round(moment.coverage, 4),
            "solved": moment.solved,
            "solved_s": solved_s,
            "plan": _ahead(mind),
            "fan": fan and fan.to_json(),
            "field": field or None,
            "thinking": self._planner.busy,
            "latency": self.performer.latency(controls),
        }

    def _target(self, hand: Hold | None, acts: bool) -> tuple[float, float]:
        """Where the agent is sent: by the hand on it, by the policy, or nowhere."""
        x, y = self.world.now.obs[:2]
        if hand is not None and hand.what == "agent":
            x, y = hand.x, hand.y
        elif acts and self._plan is not None:
            x, y = self._plan.actions[self._used]
            self._used += 1
        return min(max(float(x), 0.0), SIDE), min(max(float(y), 0.0), SIDE)

    def _forget(self) -> None:
        self._planner.cancel()
        self._plan, self._used = None, 0
        self._memory = self.policy.spec.new_history()
        self._memory.add_observation(self.world.now.obs)

    def _mind(self) -> _Mind:
        return _Mind(self._memory.copy(), self._plan, self._used, self._noise)


def _ahead(mind: _Mind) -> list[list[float]]:
    """Commands of the plan that are still to come."""
    if mind.plan is None:
        return []
    rows: list[list[float]] = np.round(mind.plan.actions[mind.used :], 1).tolist()
    return rows
