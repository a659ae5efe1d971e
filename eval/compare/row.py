"""Row of a comparison: pooled trainings of one method under one setting, their means and differences."""

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ..statistics import Difference, Estimate, mean, paired_difference, proportion, verdict
from .entries import Entry, Episodes
from .modes import compare_modes, estimate_modes


class Summary(abc.ABC):
    """Figures over all episodes of one or more trainings; each is computed when it is first asked for."""

    @property
    @abc.abstractmethod
    def trainings(self) -> tuple[Episodes, ...]:
        """Episodes of each training."""

    def _mean(self, columns: Iterable[Sequence[float]]) -> Estimate:
        """Return the mean over all episodes, given a column per training."""
        return mean(list(chain.from_iterable(columns)))

    @cached_property
    def score(self) -> Estimate:
        """Mean score over all episodes, with its bootstrap interval."""
        return self._mean(episodes.score for episodes in self.trainings)

    @cached_property
    def steps(self) -> Estimate:
        """Mean length of all episodes in control periods, with its bootstrap interval."""
        return self._mean(episodes.steps for episodes in self.trainings)

    @cached_property
    def success(self) -> Estimate | None:
        """Fraction of successful episodes, with Wilson's interval; None if successes are not reported."""
        columns = [episodes.success for episodes in self.trainings if episodes.success is not None]
        if len(columns) < len(self.trainings):
            return None
        return proportion(sum(map(sum, columns)), sum(map(len, columns)))

    @cached_property
    def _mode_estimates(self) -> tuple[Estimate, Estimate] | None:
        has_modes = all(episodes.modes for episodes in self.trainings)
        return estimate_modes(self.trainings) if has_modes else None

    @property
    def entropy(self) -> Estimate | None:
        """Entropy of the modes of successful episodes, the mean over trainings; None if none has a mode."""
        if self._mode_estimates is None or not any(each.distinct_modes for each in self.trainings):
            return None
        return self._mode_estimates[0]

    @property
    def product(self) -> Estimate | None:
        """Success × entropy, the mean over trainings; None if the task has no modes."""
        return self._mode_estimates[1] if self._mode_estimates else None


@dataclass(frozen=True)
class Row(Summary):
    """Pooled trainings of a method under one setting, in the order of their seeds."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """First entry; name, label, setting, seeds and parameters are the same in all."""
        return self.entries[0]

    @property
    def name(self) -> str:
        """Name that all entries share."""
        return self.first.name

    @property
    def method(self) -> str:
        """Method of all entries, such as "diffusion"."""
        return self.first.method

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
