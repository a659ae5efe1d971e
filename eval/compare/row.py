"""Row of a comparison: the pooled trainings of one method under one setting, and differences of two rows."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.entries import Entry, Latency
from nsde_policy.eval.modes import Diversity, ModeOutcomes, compare_diversity, estimate_diversity
from nsde_policy.eval.paths import number_paths
from nsde_policy.eval.statistics import (
    MIN_PAIRS,
    Estimate,
    McNemar,
    mcnemar,
    mean,
    paired_difference,
    proportion,
    verdict,
)


@dataclass(frozen=True)
class Row:
    """Pooled trainings of a method under one setting, in the order of their seeds."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len({entry.episodes.seed for entry in self.entries}) > 1:
            raise ComparisonError(
                f"trainings of {self.first.name!r} were played on different starts: play them on the same"
            )

    @property
    def first(self) -> Entry:
        """First entry; name, label, setting, starts and costs are the same in all."""
        return self.entries[0]

    @property
    def label(self) -> str:
        """Label of the entries."""
        return self.first.label

    @property
    def episodes(self) -> int:
        """Number of episodes of all trainings."""
        return sum(len(entry.episodes) for entry in self.entries)

    @cached_property
    def path_numbers(self) -> tuple[int, ...]:
        """Number of the distinct path of every episode, training by training.

        Trainings may share a path if the paths are known, else they share none.
        """
        drawn = [entry.episodes.unpack_paths() for entry in self.entries]
        known = [paths for paths in drawn if paths is not None]
        if len(self.entries) > 1 and len(known) == len(drawn):
            return number_paths(np.concatenate(known))
        numbers: list[int] = []
        for entry in self.entries:
            first = max(numbers, default=-1) + 1
            numbers += [first + number for number in entry.episodes.path or range(len(entry.episodes))]
        return tuple(numbers)

    @property
    def distinct_paths(self) -> int:
        """Number of different paths of all trainings, the independent samples."""
        return len({*self.path_numbers})

    def _mean(self, column: str) -> Estimate:
        """Return the mean of a column over all episodes; those that repeat a path are one sample."""
        values = [value for entry in self.entries for value in getattr(entry.episodes, column)]
        return mean(values, groups=self.path_numbers)

    @cached_property
    def score(self) -> Estimate:
        """Mean score over all episodes, with its bootstrap interval."""
        return self._mean("score")

    @cached_property
    def steps(self) -> Estimate:
        """Mean length of all episodes in control periods, with its bootstrap interval."""
        return self._mean("steps")

    @property
    def outcomes(self) -> list[ModeOutcomes]:
        """Successes by mode of every training; empty if the task has no modes."""
        found = [entry.episodes.outcomes for entry in self.entries]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else []

    @cached_property
    def diversity(self) -> Diversity | None:
        """Entropy and success × entropy, means over trainings; None if the task has no modes."""
        return estimate_diversity(self.outcomes, n=self.distinct_paths) if self.outcomes else None

    @property
    def entropy(self) -> Estimate | None:
        """Entropy of the modes of successful episodes, the mean over trainings; None if none has a mode."""
        return self.diversity.entropy if self.diversity and self.diversity.entropy.n else None

    @property
    def product(self) -> Estimate | None:
        """Success × entropy, the mean over trainings."""
        return None if self.diversity is None else self.diversity.product

    @cached_property
    def success(self) -> Estimate | None:
        """Fraction of successful episodes, with Wilson's interval; None if successes are not reported."""
        columns = [entry.episodes.success for entry in self.entries if entry.episodes.success is not None]
        if len(columns) < len(self.entries):
            return None
        return proportion(sum(map(sum, columns)), sum(map(len, columns)), independent=self.distinct_paths)

    def means_by_seed(self, column: str) -> dict[int, float]:
        """Return the mean of a column of the episodes, by training seed."""
        return {entry.train_seed: float(np.mean(getattr(entry.episodes, column))) for entry in self.entries}

    @property
    def train_s(self) -> float | None:
        """Mean of the known training times, seconds."""
        known = [entry.train_s for entry in self.entries if entry.train_s is not None]
        return sum(known) / len(known) if known else None

    @property
    def latency(self) -> Latency | None:
        """Latency of the first training that was timed: it does not depend on the weights."""
        return next((entry.latency_ms for entry in self.entries if entry.latency_ms is not None), None)

    def difference(self, other: "Row", column: str) -> Estimate:
        """Return the mean of this row minus the other, with its paired interval over the starts."""
        self._check_same_starts(other)
        means = (
            np.mean([getattr(entry.episodes, column) for entry in row.entries], axis=0)
            for row in (self, other)
        )
        return replace(paired_difference(*means), n=self._count_samples(other))

    def compare_modes(self, other: "Row") -> Diversity | None:
        """Return the differences of entropy and success × entropy, with their paired intervals."""
        self._check_same_starts(other)
        if not (self.outcomes and other.outcomes):
            return None
        # a policy whose trainings repeat one path each has entropy 0, which needs no further samples
        samples = [row.distinct_paths for row in (self, other) if any(o.distinct > 1 for o in row.outcomes)]
        n = min([len(self.first.episodes), *samples]) if samples else 1
        return compare_diversity(self.outcomes, other.outcomes, n=n)

    def _count_samples(self, other: "Row") -> int:
        """Return the number of starts, or of distinct paths if one of two rows has fewer."""
        return min(len(self.first.episodes), self.distinct_paths, other.distinct_paths)

    def mcnemar(self, other: "Row") -> McNemar | None:
        """Test this row's successes against the other's, over common training seeds.

        Returns:
            None without common seeds, or if one row has too few distinct paths to show a difference.

        Pairs are a start and a training seed each. Trainings share their starts, so with several of them
        the p-value is somewhat too small; the paired interval is not affected.
        """
        self._check_same_starts(other)
        own, others = (
            {e.train_seed: e.episodes.success for e in row.entries if e.episodes.success is not None}
            for row in (self, other)
        )
        common = sorted(set(own) & set(others))
        if not common or self._count_samples(other) < min(MIN_PAIRS, len(self.first.episodes)):
            return None
        return mcnemar(
            np.concatenate([own[seed] for seed in common]), np.concatenate([others[seed] for seed in common])
        )

    def decide(self, other: "Row", column: str, *, a: str, b: str) -> str:
        """Return which of two rows, called `a` and `b`, is ahead by a column, or that no difference is shown.

        Successes also need McNemar's test; scores need the paired interval alone.
        """
        test = self.mcnemar(other) if column == "success" else None
        return verdict(self.difference(other, column), a=a, b=b, p=None if test is None else test.p)

    def _check_same_starts(self, other: "Row") -> None:
        first, second = (row.first.episodes.seed for row in (self, other))
        if first != second:
            raise ComparisonError(
                f"{self.first.name!r} and {other.first.name!r} were played on different starts, "
                f"{len(first)} from {first[0]} to {first[-1]} and {len(second)} from {second[0]} to "
                f"{second[-1]}: play both on the same"
            )
