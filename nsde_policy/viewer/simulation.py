"""Push-T simulation with a history: any control period of the last two minutes can be restored exactly.

The physics engine cannot be set to an earlier state, because its solver caches contacts. So a period is
restored by replaying the inputs since the last reset: the same numbers bit for bit, 0.1 ms a period.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nsde_policy.envs.pusht.dynamics import CONTROL_HZ, STEPS_PER_PERIOD
from nsde_policy.envs.pusht.env import PushTEnv, ResetRule
from nsde_policy.envs.pusht.geometry import Pose

HISTORY_PERIODS = 1200
"""Control periods that can be restored at least, two minutes; at most twice as many are kept."""


@dataclass(frozen=True)
class Input:
    """What acts on the table in one control period."""

    target: tuple[float, float] | None
    """Commanded position of the agent; None if everything rests."""
    dragged: Pose | None = None
    """Pose to which a user drags the block."""


@dataclass(frozen=True)
class Snapshot:
    """The table between two control periods."""

    obs: np.ndarray
    """agent x, y, block x, y, angle, (5,)."""
    coverage: float
    solved: bool


@dataclass
class _Segment:
    """Inputs that can be replayed from a reset."""

    first: int
    """Control period of the reset."""
    start: dict[str, Any]
    """Arguments of the reset."""
    inputs: list[Input] = field(default_factory=list)


class Simulation:
    """One table and its history."""

    trail: list[list[float]]
    """Agent and block after every physics step of the last control period."""
    _solved: int | None
    """First solved control period; kept when its snapshot is dropped."""

    def __init__(self, seed: int, reset_rule: ResetRule = "benchmark") -> None:
        self._env = PushTEnv(reset_rule=reset_rule)
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start from a seed and drop the history."""
        segment = _Segment(0, {"seed": seed})
        snapshot = self._start(segment)  # first, so that an invalid seed changes nothing
        self.seed, self._segments, self._snapshots = seed, [segment], [snapshot]
        self._solved = 0 if snapshot.solved else None

    @property
    def first(self) -> int:
        """Oldest control period in the history."""
        return self._segments[0].first

    @property
    def last(self) -> int:
        """Current control period."""
        return self.first + len(self._snapshots) - 1

    @property
    def now(self) -> Snapshot:
        """Current snapshot of the table."""
        return self._snapshots[-1]

    def at(self, period: int) -> Snapshot:
        """Return the snapshot of a control period in the history."""
        return self._snapshots[period - self.first]

    def describe(self, period: int) -> dict[str, Any]:
        """Return what to draw of a control period; "solved_s" as explained in `http`."""
        snapshot = self.at(period)
        trail = self.trail if period == self.last else [snapshot.obs.tolist()]
        solved = None if self._solved is None or self._solved > period else self._solved
        return {
            "trail": [[round(value, 2) for value in row[:4]] + [round(row[4], 4)] for row in trail],
            "coverage": round(snapshot.coverage, 4),
            "solved": snapshot.solved,
            "solved_s": None if solved is None else solved / CONTROL_HZ,
        }

    @property
    def coverage(self) -> list[float]:
        """Coverage of every control period in the history."""
        return [snapshot.coverage for snapshot in self._snapshots]

    def advance(self, new: Input) -> None:
        """Run one control period."""
        segment = self._segments[-1]
        if len(segment.inputs) == HISTORY_PERIODS:
            del self._snapshots[: segment.first - self.first]
            self._segments = [segment, _Segment(segment.first + HISTORY_PERIODS, self._restart_options())]
            segment = self._segments[-1]
            self._start(segment)
        snapshot = self._apply(new)  # first, so that an invalid input changes nothing
        segment.inputs.append(new)
        self._snapshots.append(snapshot)
        if snapshot.solved and self._solved is None:
            self._solved = self.last

    def restore(self, period: int) -> None:
        """Go back to a control period in the history, exactly, and drop what came after it."""
        if period == self.last:
            return
        if self._solved is not None and self._solved > period:
            self._solved = None
        while self._segments[-1].first > period:
            self._segments.pop()
        segment, first = self._segments[-1], self.first
        del segment.inputs[period - segment.first :]
        del self._snapshots[period - first + 1 :]
        self._start(segment)
        for old in segment.inputs:
            self._apply(old)

    def _start(self, segment: _Segment) -> Snapshot:
        obs, info = self._env.reset(**segment.start)
        self.trail = [np.asarray(obs).tolist()]
        return Snapshot(np.asarray(obs), info["coverage"], info["success"])

    def _apply(self, new: Input) -> Snapshot:
        before = self.trail[-1]
        if new.target is None:
            self.trail = [before]
            return self.now
        target, trail = np.array(new.target), []
        poses = _interpolate_poses(before[2:], new.dragged) if new.dragged else None
        for step in range(STEPS_PER_PERIOD):
            if poses:
                self._env.hold_block(poses[step])
            obs, info = self._env.advance(target, 1)
            trail.append(np.asarray(obs).tolist())
        self.trail = trail
        return Snapshot(np.asarray(obs), info["coverage"], info["success"])

    def _restart_options(self) -> dict[str, Any]:
        """Return arguments of a reset to the current poses, at rest and within the table."""
        state = self.now.obs.copy()
        state[:2] = np.clip(state[:2], 0.0, 512.0)
        state[2:4] = np.clip(state[2:4], -256.0, 768.0)
        return {"options": {"state": [float(x) for x in state]}}


def _interpolate_poses(start: list[float], end: Pose) -> list[Pose]:
    """Return one pose of the block per physics step, with the angle going the short way round."""
    turn = math.remainder(end[2] - start[2], 2 * math.pi)
    shares = [(step + 1) / STEPS_PER_PERIOD for step in range(STEPS_PER_PERIOD)]
    return [
        (start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1]), start[2] + s * turn)
        for s in shares
    ]
