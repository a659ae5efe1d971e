"""Simulation of a task: its table, and what happened on it in the last control periods."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nsde_policy.tasks.base import Task

from . import messages

HISTORY_PERIODS = 2400
"""Length of the history, four minutes at 10 Hz."""


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
    drags: list[messages.DraggedPose]
    """Poses to which users dragged the block since the start, with their control period."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self.table = task.live_table()
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start from a seed and drop the history."""
        found, info = self.table.start(seed)  # first, so that an invalid seed changes nothing
        self.seed = seed
        self.first = 0
        self.trail = [self.table.describe(found)]
        self.drags = []
        self._snapshots = [self._make_snapshot(found, 0.0, info, over=bool(info["success"]))]

    @property
    def last(self) -> int:
        """Current control period."""
        return self.first + len(self._snapshots) - 1

    @property
    def now(self) -> Snapshot:
        """Current snapshot of the table."""
        return self._snapshots[-1]

    def describe(self) -> dict[str, object]:
        """Return what to draw of the current control period, see `messages`."""
        now, since = self.now, max(self.first, self.released_at or 0)
        solved = (k for k, each in enumerate(self._snapshots, self.first) if k >= since and each.solved)
        return {
            "trail": self.trail,
            "progress": round(now.progress, 4),
            "solved": now.solved,
            "failed": now.over and not now.solved,
            "solved_at": next(solved, None),
            "released_at": self.released_at,
        }

    @property
    def released_at(self) -> int | None:
        """Control period in which the block was last let go; None for never."""
        return self.drags[-1][0] + 1 if self.drags else None

    @property
    def progress(self) -> list[float]:
        """Progress in every control period of the history."""
        return [snapshot.progress for snapshot in self._snapshots]

    @property
    def episode(self) -> tuple[list[float], list[Mapping[str, object]]]:
        """Rewards and infos of the periods in the history, as `Task.outcome` takes them."""
        return [each.reward for each in self._snapshots[1:]], [each.info for each in self._snapshots]

    def advance(self, action: np.ndarray | None, dragged: np.ndarray | None = None) -> None:
        """Run one control period, in which a user may drag the block to a pose; None lets everything rest."""
        if action is None:
            self.trail = self.trail[-1:]
            snapshot = self.now
        else:
            step = self.table.advance(action, dragged)
            self.trail = [self.table.describe(state) for state in step.states]
            snapshot = self._make_snapshot(step.states[-1], step.reward, step.info, over=step.is_over)
        if dragged is not None:
            self.drags.append((self.last, *dragged.tolist()))
        self._snapshots.append(snapshot)
        if len(self._snapshots) > HISTORY_PERIODS:
            del self._snapshots[0]
            self.first += 1

    def _make_snapshot(
        self, state: np.ndarray, reward: float, info: Mapping[str, object], *, over: bool
    ) -> Snapshot:
        progress = self._task.drawing.progress(info) or 0.0
        return Snapshot(state, reward, info, over, progress, bool(info["success"]))
