"""A Push-T table that remembers: every control period of the last minutes, and the way back to each.

The physics cannot be put into a past state: its solver remembers contacts. So a moment is restored by doing
again what was done since the last reset, which gives the same numbers bit for bit, 0.1 ms a period.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nsde_policy.envs.pusht.dynamics import CONTROL_HZ, STEPS_PER_PERIOD
from nsde_policy.envs.pusht.env import PushTEnv, ResetRule

HISTORY = 1200
"""Control periods that can be gone back at least, two minutes; at most twice as many are kept."""

Pose = tuple[float, float, float]
"""x, y, angle of the block, pixels and radians."""


@dataclass(frozen=True)
class Deed:
    """What was done to the table in one control period."""

    target: tuple[float, float] | None
    """Where the agent was sent; None where everything rests."""
    hand: Pose | None = None
    """Where a hand carried the block to."""


@dataclass(frozen=True)
class Moment:
    """The table between two control periods."""

    obs: np.ndarray
    """agent x, y, block x, y, angle, (5,)."""
    coverage: float
    solved: bool


@dataclass
class _Segment:
    """A stretch that can be done again from its start."""

    first: int
    """Control period it starts at."""
    start: dict[str, Any]
    """Arguments of the reset it starts with."""
    deeds: list[Deed] = field(default_factory=list)


class World:
    """One table, and what happened on it."""

    _solved: int | None
    """First control period that found the block in its goal; kept though the moment may be forgotten."""

    def __init__(self, seed: int, reset_rule: ResetRule = "benchmark") -> None:
        self._env = PushTEnv(reset_rule=reset_rule)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start again from a seed; the past is forgotten."""
        segment = _Segment(0, {"seed": seed})
        moment = self._begin(segment)  # a seed that is refused changes nothing
        self.seed, self._segments, self._moments = seed, [segment], [moment]
        self._solved = 0 if moment.solved else None

    @property
    def first(self) -> int:
        """The oldest control period that is remembered."""
        return self._segments[0].first

    @property
    def last(self) -> int:
        """The present control period."""
        return self.first + len(self._moments) - 1

    @property
    def now(self) -> Moment:
        """The present."""
        return self._moments[-1]

    def at(self, period: int) -> Moment:
        """A moment that is remembered."""
        return self._moments[period - self.first]

    def solved_s(self, period: int) -> float | None:
        """Simulated seconds from the reset to the first success; None where `period` is before it."""
        return None if self._solved is None or self._solved > period else self._solved / CONTROL_HZ

    @property
    def coverage(self) -> list[float]:
        """Coverage from the oldest moment to the present."""
        return [moment.coverage for moment in self._moments]

    @property
    def trail(self) -> list[list[float]]:
        """Where agent and block were at every step of the physics of the last period."""
        return self._trail

    def advance(self, deed: Deed) -> None:
        """Run one control period."""
        segment = self._segments[-1]
        if len(segment.deeds) == HISTORY:
            del self._moments[: segment.first - self.first]
            new = _Segment(segment.first + HISTORY, {"options": {"state": self._on_the_table()}})
            self._segments, segment = [segment, new], new
            self._begin(new)
        moment = self._do(deed)  # a deed that is refused has not happened
        segment.deeds.append(deed)
        self._moments.append(moment)
        if moment.solved and self._solved is None:
            self._solved = self.last

    def restore(self, period: int) -> None:
        """Make a remembered moment the present, exactly; what came after it is forgotten."""
        if period == self.last:
            return
        if self._solved is not None and self._solved > period:
            self._solved = None
        while self._segments[-1].first > period:
            self._segments.pop()
        segment, first = self._segments[-1], self.first
        del segment.deeds[period - segment.first :]
        del self._moments[period - first + 1 :]
        self._begin(segment)
        for deed in segment.deeds:
            self._do(deed)

    def _begin(self, segment: _Segment) -> Moment:
        obs, info = self._env.reset(**segment.start)
        self._trail = [np.asarray(obs).tolist()]
        return Moment(np.asarray(obs), info["coverage"], info["success"])

    def _do(self, deed: Deed) -> Moment:
        obs, trail = self._trail[-1], []
        if deed.target is None:
            self._trail = [obs]
            return self.now
        env, target = self._env, np.array(deed.target)
        carried = _between(obs[2:], deed.hand) if deed.hand else None
        for step in range(STEPS_PER_PERIOD):
            if carried:
                env.hold_block(carried[step])
            seen, info = env.advance(target, 1)
            trail.append(np.asarray(seen).tolist())
        self._trail = trail
        return Moment(np.asarray(seen), info["coverage"], info["success"])

    def _on_the_table(self) -> list[float]:
        """The present as a start of its own: a table at rest, a little before the agent goes on."""
        state = self.now.obs.copy()
        state[:2] = np.clip(state[:2], 0.0, 512.0)
        state[2:4] = np.clip(state[2:4], -256.0, 768.0)
        return [float(x) for x in state]


def _between(here: list[float], there: Pose) -> list[Pose]:
    """Poses on the way of a hand, one per step of the physics; the short way round for the angle."""
    turn = math.remainder(there[2] - here[2], 2 * math.pi)
    shares = [(step + 1) / STEPS_PER_PERIOD for step in range(STEPS_PER_PERIOD)]
    return [
        (here[0] + s * (there[0] - here[0]), here[1] + s * (there[1] - here[1]), here[2] + s * turn)
        for s in shares
    ]
