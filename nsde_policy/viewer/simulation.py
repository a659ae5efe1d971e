"""Simulation of a task with a history: any control period in it can be restored exactly.

A physics engine cannot be set to an earlier state, because its solver caches contacts. So a period is
restored by replaying the inputs from the start: the same numbers bit for bit, about 0.5 ms a period.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsde_policy.tasks.base import Task
from nsde_policy.viewer import messages

HISTORY_PERIODS = 2400
"""Length of the history, four minutes at 10 Hz; a longer episode continues with an empty one."""


class Input(NamedTuple):
    """What acts on the table in one control period."""

    action: np.ndarray | None
    """Action of the environment; None if everything rests."""
    dragged: np.ndarray | None = None
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


class Simulation:
    """One table and its history."""

    first: int
    """Oldest control period in the history."""
    trail: list[list[float]]
    """Frames of the task's scene on the page during the last control period."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self.table = task.live_table()
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start from a seed and drop the history."""
        self._start(0, seed)
        self.seed = seed

    @property
    def last(self) -> int:
        """Current control period."""
        return self.first + len(self._inputs)

    @property
    def now(self) -> Snapshot:
        """Current snapshot of the table."""
        return self._snapshots[-1]

    def at(self, period: int) -> Snapshot:
        """Return the snapshot of a control period in the history."""
        return self._snapshots[period - self.first]

    def describe(self, period: int) -> dict[str, object]:
        """Return what to draw of a control period, see `messages`."""
        snapshot, released_at = self.at(period), self.released_at(period)
        since = range(self.first if released_at is None else released_at, period + 1)
        return {
            "trail": self.trail if period == self.last else [self.table.describe(snapshot.state)],
            "progress": round(snapshot.progress, 4),
            "solved": snapshot.solved,
            "failed": snapshot.over and not snapshot.solved,
            "solved_at": next((k for k in since if self.at(k).solved), None),
            "released_at": released_at,
        }

    def released_at(self, period: int) -> int | None:
        """Return the control period up to `period` in which the block was last let go; None for never."""
        return max((k + 1 for k, *_ in self.drags if k < period), default=None)

    @property
    def progress(self) -> list[float]:
        """Progress in every control period of the history."""
        return [snapshot.progress for snapshot in self._snapshots]

    @property
    def drags(self) -> list[messages.DraggedPose]:
        """Poses to which users dragged the block in the history, with their control period."""
        dragged = ((k, each.dragged) for k, each in enumerate(self._inputs, self.first))
        return [(k, *pose.tolist()) for k, pose in dragged if pose is not None]

    @property
    def episode(self) -> tuple[list[float], list[Mapping[str, object]]]:
        """Rewards and infos of the periods in the history, as `Task.outcome` takes them."""
        return [each.reward for each in self._snapshots[1:]], [each.info for each in self._snapshots]

    def advance(self, new: Input) -> None:
        """Run one control period."""
        if len(self._inputs) == HISTORY_PERIODS:
            self._start(self.last, None, self.now.state)
        if new.action is None:
            self.trail = self.trail[-1:]
            snapshot = self.now
        else:
            step = self.table.advance(new.action, new.dragged)
            self.trail = [self.table.describe(state) for state in step.states]
            snapshot = self._make_snapshot(step.states[-1], step.reward, step.info, over=step.is_over)
        self._inputs.append(new)
        self._snapshots.append(snapshot)

    def restore(self, period: int) -> None:
        """Go back to a control period in the history, exactly, and drop what came after it."""
        inputs = self._inputs[: period - self.first]
        self._start(self.first, *self._started)
        for each in inputs:
            self.advance(each)

    def _start(self, period: int, seed: int | None, state: np.ndarray | None = None) -> None:
        """Start the table and the history at a control period, from a seed or at a state."""
        found, info = self.table.start(seed, state)  # first, so that an invalid seed changes nothing
        self.first = period
        self.trail = [self.table.describe(found)]
        self._started = seed, state
        self._inputs: list[Input] = []
        self._snapshots = [self._make_snapshot(found, 0.0, info, over=bool(info["success"]))]

    def _make_snapshot(
        self, state: np.ndarray, reward: float, info: Mapping[str, object], *, over: bool
    ) -> Snapshot:
        progress = self._task.drawing.progress(info) or 0.0
        return Snapshot(state, reward, info, over, progress, bool(info["success"]))
