"""Row of a comparison: pooled trainings of one method under one setting, their means and differences."""

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Protocol, Self, TypeVar

import numpy as np

from nsde_policy.errors import ComparisonError

from ..rollouts.paths import number_paths
from ..statistics import (
    MIN_PAIRS,
    Difference,
    Estimate,
    McNemar,
    mcnemar,
    mean,
    paired_difference,
    proportion,
    verdict,
)
from .entries import Entry, Episodes, Latency
from .modes import ModeOutcomes, compare_modes, estimate_modes

REFERENCE_METHOD = "neural_sde"


class ComparedRow(Protocol):
    """Results of one policy that are compared with others, in rollouts or on recorded episodes."""

    @property
    def name(self) -> str:
        """Unique name, such as "diffusion, DDIM-10"."""

    @property
    def label(self) -> str:
        """Name in tables, such as "Diffusion Policy, DDIM-10"."""

    @property
    def method(self) -> str:
        """Name of the method, such as "diffusion"."""

    def difference(self, other: Self, column: str) -> Difference | None:
        """Return a column of this row minus the other, with its paired interval; None if one lacks it."""

    def decide(self, other: Self, column: str) -> str:
        """Return which of two rows is ahead by a column, or that no difference is shown."""


R = TypeVar("R", bound=ComparedRow)


def choose_reference(rows: Sequence[R], name: str | None) -> R:
    """Return the row that others are compared with; by default the Neural SDE, or else the first."""
    if name is None:
        return min(rows, key=lambda row: (row.name != REFERENCE_METHOD, row.method != REFERENCE_METHOD))
    for row in rows:
        if name in (row.name, row.label):
            return row
    available = ", ".join(repr(row.name) for row in rows)
    raise ComparisonError(f"no row {name!r} to refer to; available: {available}")


class Summary(abc.ABC):
    """Figures over all episodes of one or more trainings; each is computed when it is first asked for."""

    @property
    @abc.abstractmethod
    def trainings(self) -> tuple[Episodes, ...]:
        """Episodes of each training."""

    @cached_property
    def path_numbers(self) -> tuple[int, ...]:
        """Number of the distinct path of every episode, training by training.

        Trainings may share a path if the paths are known, else they share none.
        """
        paths = [path for episodes in self.trainings if (path := episodes.unpack_paths()) is not None]
        if len(paths) > 1 and len(paths) == len(self.trainings):
            return number_paths(np.concatenate(paths))
        numbers: list[int] = []
        for episodes in self.trainings:
            first = max(numbers, default=-1) + 1
            numbers += [first + number for number in episodes.path or range(len(episodes))]
        return tuple(numbers)

    @property
    def distinct_paths(self) -> int:
        """Number of different paths of all trainings, the independent samples."""
        return len({*self.path_numbers})

    def _mean(self, columns: Iterable[Sequence[float]]) -> Estimate:
        """Return the mean over all episodes, given a column per training; a path counts as one sample."""
        return mean(list(chain.from_iterable(columns)), groups=self.path_numbers)

    @cached_property
    def score(self) -> Estimate:
        """Mean score over all episodes, with its bootstrap interval."""
        return self._mean(episodes.score for episodes in self.trainings)

    @cached_property
    def steps(self) -> Estimate:
        """Mean length of all episodes in control periods, with its bootstrap interval."""
        return self._mean(episodes.steps for episodes in self.trainings)

    @property
    def outcomes(self) -> list[ModeOutcomes]:
        """Successes by mode of every training; empty if the task has no modes."""
        outcomes = [each for episodes in self.trainings if (each := episodes.outcomes) is not None]
        return outcomes if len(outcomes) == len(self.trainings) else []

    @cached_property
    def _mode_estimates(self) -> tuple[Estimate, Estimate] | None:
        return estimate_modes(self.outcomes, self.path_numbers) if self.outcomes else None

    @property
    def entropy(self) -> Estimate | None:
        """Entropy of the modes of successful episodes, the mean over trainings; None if none has a mode."""
        has_mode = any(outcomes.observed for outcomes in self.outcomes)
        return self._mode_estimates[0] if self._mode_estimates and has_mode else None

    @property
    def product(self) -> Estimate | None:
        """Success × entropy, the mean over trainings; None if the task has no modes."""
        return self._mode_estimates[1] if self._mode_estimates else None

    @cached_property
    def success(self) -> Estimate | None:
        """Fraction of successful episodes, with Wilson's interval; None if successes are not reported."""
        columns = [episodes.success for episodes in self.trainings if episodes.success is not None]
        if len(columns) < len(self.trainings):
            return None
        return proportion(sum(map(sum, columns)), sum(map(len, columns)), independent=self.distinct_paths)


@dataclass(frozen=True)
class Row(Summary):
    """Pooled trainings of a method under one setting, in the order of their seeds."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """First entry; name, label, setting, seeds and parameters are the same in all."""
        return self.entries[0]

    @property
    def calls_per_chunk(self) -> float:
        """Sequential network calls for eight actions, the mean over trainings."""
        return round(float(np.mean([entry.calls_per_chunk for entry in self.entries])), 1)

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
    def episodes(self) -> int:
        """Number of episodes of all trainings."""
        return sum(len(entry.episodes) for entry in self.entries)

    @property
    def trainings(self) -> tuple[Episodes, ...]:
        """Episodes of each entry."""
        return tuple(entry.episodes for entry in self.entries)

    def means_by_seed(self, column: str) -> dict[int, float]:
        """Return the mean of a column of the episodes, by training seed."""
        return {entry.train_seed: float(np.mean(getattr(entry.episodes, column))) for entry in self.entries}

    @property
    def train_s(self) -> float | None:
        """Mean of the known training times, seconds."""
        times = [entry.train_s for entry in self.entries if entry.train_s is not None]
        return sum(times) / len(times) if times else None

    @property
    def latency(self) -> Latency | None:
        """Latency of the first training that was timed: it does not depend on the weights."""
        return next((entry.latency_ms for entry in self.entries if entry.latency_ms is not None), None)

    def difference(self, other: "Row", column: str) -> Difference:
        """Return the mean of this row minus the other, with its paired interval over the seeds."""
        n = len(self.first.episodes)
        if column == "product":
            # a policy whose trainings repeat one path each has entropy 0, which needs no further samples
            paths = [row.distinct_paths for row in (self, other) if row.distinct_paths > len(row.entries)]
            return Difference(**vars(compare_modes(self.outcomes, other.outcomes, n=min([n, *paths]))))
        means = (
            np.mean([getattr(entry.episodes, column) for entry in row.entries], axis=0)
            for row in (self, other)
        )
        return replace(paired_difference(*means), n=min(n, self.distinct_paths, other.distinct_paths))

    def mcnemar(self, other: "Row") -> McNemar | None:
        """Test this row's successes against the other's, over common training seeds; None with few samples.

        Pairs are a seed and a training each. Trainings share their seeds, so with several of them the
        p-value is somewhat too small; the paired interval is not affected.
        """
        own, others = (
            {e.train_seed: e.episodes.success for e in row.entries if e.episodes.success is not None}
            for row in (self, other)
        )
        common = sorted(set(own) & set(others))
        paths = min(self.distinct_paths, other.distinct_paths)
        if not common or paths < min(MIN_PAIRS, len(self.first.episodes)):
            return None
        return mcnemar(
            np.concatenate([own[seed] for seed in common]), np.concatenate([others[seed] for seed in common])
        )

    def decide(self, other: "Row", column: str) -> str:
        """Return which of two rows is ahead; successes also need McNemar's test."""
        test = self.mcnemar(other) if column == "success" else None
        difference = self.difference(other, column)
        return verdict(difference, a=self.label, b=other.label, p=None if test is None else test.p)
