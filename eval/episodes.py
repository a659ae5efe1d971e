"""Outcomes of the episodes of one policy, in columns."""

from collections.abc import Mapping

import msgspec
import numpy as np

ROUGHNESS = "roughness"
"""Name of the metric that says how many times as rough as the demonstrations the commands were."""


class Episodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcomes of one run in columns, one value per seed, in the order of the seeds."""

    seed: tuple[int, ...]
    score: tuple[float, ...]
    """Score of each episode; `Task.score_name` says what it is."""
    success: tuple[bool, ...] | None
    """None if the environment does not report successes."""
    metrics: Mapping[str, tuple[float, ...]]
    """Further figures of the task, by name."""
    steps: tuple[int, ...]
    modes: int = 0
    """Number of modes of the task; 0 if it has none."""
    mode: tuple[int, ...] | None = None
    """Mode of each episode from 0, -1 if unknown; None if the task has none."""
    success_step: tuple[int | None, ...] | None = None
    """Actions before the first success of each episode, None without; None if all end with their success."""

    def __len__(self) -> int:
        return len(self.seed)

    @property
    def succeeded(self) -> np.ndarray:
        """Return which episodes succeeded, (episodes,) bool: all, if successes are not reported."""
        return np.ones(len(self), bool) if self.success is None else np.array(self.success)

    @property
    def modes_taken(self) -> np.ndarray:
        """Return 1 where an episode succeeded in a mode, and 0 elsewhere, (episodes, modes)."""
        taken = np.array(self.mode)[:, None] == np.arange(self.modes)
        counted: np.ndarray = taken * self.succeeded[:, None] * 1.0
        return counted

    @property
    def successes_by_mode(self) -> np.ndarray:
        """Count the successes in each mode, (modes,)."""
        counts: np.ndarray = self.modes_taken.sum(axis=0).astype(int)
        return counts

    @property
    def distinct_modes(self) -> int:
        """Count the modes with at least one success."""
        return int((self.successes_by_mode > 0).sum())
