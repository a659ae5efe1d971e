"""Row of a comparison: pooled trainings of one method under one setting, their means and differences."""

from dataclasses import dataclass

import numpy as np

from ..episodes import Episodes
from ..modes import compare_modes
from ..statistics import Difference, paired_difference, verdict
from ..summary import Summary
from .entries import Entry


@dataclass(frozen=True)
class Row(Summary):
    """Pooled trainings of a method under one setting, in the order of their seeds."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """First entry; name, method, setting, seeds and parameters are the same in all."""
        return self.entries[0]

    @property
    def label(self) -> str:
        """Label of the entries."""
        return self.first.label

    @property
    def trainings(self) -> tuple[Episodes, ...]:
        """Episodes of each entry."""
        return tuple(entry.episodes for entry in self.entries)

    @property
    def episodes(self) -> int:
        """Number of episodes of all trainings."""
        return sum(map(len, self.trainings))

    @property
    def calls_per_chunk(self) -> float:
        """Sequential network calls for eight actions, the mean over trainings."""
        return round(float(np.mean([entry.calls_per_chunk for entry in self.entries])), 1)

    @property
    def train_s(self) -> float | None:
        """Mean of the known training times, seconds."""
        times = [entry.train_s for entry in self.entries if entry.train_s is not None]
        return sum(times) / len(times) if times else None

    def means_by_seed(self, column: str) -> dict[int, float]:
        """Return the mean of a column of the episodes, by training seed."""
        return {entry.train_seed: float(np.mean(getattr(entry.episodes, column))) for entry in self.entries}

    def difference(self, other: "Row", column: str) -> Difference:
        """Return the mean of this row minus the other, with its paired interval over the seeds."""
        if column == "product":
            return Difference(**vars(compare_modes(self.trainings, other.trainings)))
        own, others = (
            np.mean([getattr(episodes, column) for episodes in row.trainings], axis=0)
            for row in (self, other)
        )
        return paired_difference(own, others)

    def decide(self, other: "Row", column: str) -> str:
        """Return which of two rows is ahead."""
        return verdict(self.difference(other, column), a=self.label, b=other.label)
