"""Simulation of a task: its table, and what has happened on it since the start of the episode."""

from collections.abc import Mapping

import numpy as np

from nsde_policy.tasks.base import Task


class Simulation:
    """One table and its episode."""

    seed: int
    state: np.ndarray
    """State as `Drawing.read_state` returns it."""
    is_over: bool
    """True once the episode has ended, with success or without."""
    trail: list[list[float]]
    """Frames of the task's scene on the page during the last control period."""
    rewards: list[float]
    infos: list[Mapping[str, object]]
    progress: list[float]
    """Progress at the start and after every control period."""
    released_at: int | None
    """Control period in which a user last let go of the block or the agent; None for never."""
    solved_at: int | None
    """Control period of the first success since then."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self.table = task.live_table()
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start an episode from a seed."""
        self.state, info = self.table.start(seed)
        self.seed = seed
        self.is_over = bool(info["success"])
        self.trail = [self.table.describe(self.state)]
        self.rewards, self.infos, self.progress = [], [info], [self._read_progress(info)]
        self.released_at, self.solved_at = None, 0 if self.is_solved else None

    @property
    def last(self) -> int:
        """Current control period."""
        return len(self.progress) - 1

    @property
    def is_solved(self) -> bool:
        """Return whether the table is in a state of success now."""
        return bool(self.infos[-1]["success"])

    def describe(self) -> dict[str, object]:
        """Return what to draw of the current control period, see `messages`."""
        return {
            "trail": self.trail,
            "progress": round(self.progress[-1], 4),
            "solved": self.is_solved,
            "failed": self.is_over and not self.is_solved,
            "ended": self.is_over,
            "solved_at": self.solved_at,
            "released_at": self.released_at,
        }

    def rest(self) -> None:
        """Let a control period pass in which nothing moves."""
        self.trail = self.trail[-1:]
        self.progress.append(self.progress[-1])

    def advance(
        self, action: np.ndarray, dragged: np.ndarray | None = None, *, by_user: bool = False
    ) -> None:
        """Run one control period, in which a user may hold the agent, or drag the block to a pose."""
        states, reward, self.is_over, info = self.table.advance(action, dragged)
        self.state = states[-1]
        self.trail = [self.table.describe(state) for state in states]
        self.rewards.append(reward)
        self.infos.append(info)
        self.progress.append(self._read_progress(info))
        if by_user:
            self.released_at, self.solved_at = self.last, None
        if self.is_solved and self.solved_at is None:
            self.solved_at = self.last

    def _read_progress(self, info: Mapping[str, object]) -> float:
        return self._task.drawing.progress(info) or 0.0
