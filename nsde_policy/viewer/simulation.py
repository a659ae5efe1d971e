"""Simulation of a task with a history: any control period of the last minutes can be restored exactly.

A physics engine cannot be set to an earlier state, because its solver caches contacts. So a period is
restored by replaying the inputs since the last reset: the same numbers bit for bit, 0.1 ms a period.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nsde_policy.tasks.base import Task
from nsde_policy.tasks.live_table import LiveTable

HISTORY_PERIODS = 1200
"""Control periods that can be restored at least, two minutes at 10 Hz; at most twice as many are kept."""


@dataclass(frozen=True)
class Input:
    """What acts on the table in one control period."""

    action: tuple[float, ...] | None
    """Action of the environment; None if everything rests."""
    dragged: tuple[float, float, float] | None = None
    """Pose to which a user drags the block."""


@dataclass(frozen=True)
class Snapshot:
    """The table between two control periods."""

    state: np.ndarray
    """What `Drawing.read_state` returns."""
    reward: float
    info: Mapping[str, object]
    over: bool
    """Whether the episode has ended, with success or without."""
    progress: float
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
    """Frames of the task's scene on the page during the last control period."""
    _solved: int | None
    """First solved control period; kept when its snapshot is dropped."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self.table: LiveTable = task.live_table()
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
        solved = None if self._solved is None or self._solved > period else self._solved
        return {
            "trail": self.trail if period == self.last else [self.table.describe(snapshot.state)],
            "progress": round(snapshot.progress, 4),
            "solved": snapshot.solved,
            "failed": snapshot.over and not snapshot.solved,
            "solved_s": None if solved is None else round(solved / get_rate(self._task), 3),
        }

    @property
    def progress(self) -> list[float]:
        """Progress in every control period of the history."""
        return [snapshot.progress for snapshot in self._snapshots]

    @property
    def episode(self) -> tuple[list[float], list[Mapping[str, object]]]:
        """Rewards and infos of the periods in the history, as `Task.outcome` takes them."""
        return [each.reward for each in self._snapshots[1:]], [each.info for each in self._snapshots]

    def advance(self, new: Input) -> None:
        """Run one control period."""
        segment = self._segments[-1]
        if len(segment.inputs) == HISTORY_PERIODS:
            del self._snapshots[: segment.first - self.first]
            self._segments = [
                segment,
                _Segment(segment.first + HISTORY_PERIODS, self.table.restart_arguments(self.now.state)),
            ]
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
        state, info = self.table.start(**segment.start)
        self.trail = [self.table.describe(state)]
        return self._make_snapshot(state, 0.0, info, over=bool(info["success"]))

    def _apply(self, new: Input) -> Snapshot:
        if new.action is None:
            self.trail = self.trail[-1:]
            return self.now
        states, reward, over, info = self.table.advance(new.action, new.dragged)
        self.trail = [self.table.describe(state) for state in states]
        return self._make_snapshot(states[-1], reward, info, over=over)

    def _make_snapshot(
        self, state: np.ndarray, reward: float, info: Mapping[str, object], *, over: bool
    ) -> Snapshot:
        progress = self._task.drawing.progress(info)
        return Snapshot(state, reward, info, over, progress or 0.0, bool(info["success"]))


def get_rate(task: Task) -> float:
    """Return the control periods per second of a task with a live page."""
    assert task.rate_hz is not None
    return task.rate_hz
