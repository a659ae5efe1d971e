"""Row of a comparison: the pooled trainings of one method under one setting, and differences of two rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import numpy as np

from nsde_policy.errors import ComparisonError
from nsde_policy.eval.compare.entries import Entry, Episodes, Latency
from nsde_policy.eval.compare.modes import compare_diversity
from nsde_policy.eval.compare.summary import Summary
from nsde_policy.eval.statistics import MIN_PAIRS, Difference, McNemar, mcnemar, paired_difference, verdict

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
    """Return the row that others are compared with; by default the Neural SDE, or else the first.

    Raises:
        ComparisonError: If no row has that name or label.
    """
    if name is None:
        return min(rows, key=lambda row: (row.name != REFERENCE_METHOD, row.method != REFERENCE_METHOD))
    for row in rows:
        if name in (row.name, row.label):
            return row
    available = ", ".join(repr(row.name) for row in rows)
    raise ComparisonError(f"no row {name!r} to refer to; available: {available}")


@dataclass(frozen=True)
class Row(Summary):
    """Pooled trainings of a method under one setting, in the order of their seeds."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len({entry.episodes.seed for entry in self.entries}) > 1:
            raise ComparisonError(
                f"trainings of {self.name!r} were rolled out from different seeds: use the same --episodes "
                "and --seed-start"
            )

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
        known = [entry.train_s for entry in self.entries if entry.train_s is not None]
        return sum(known) / len(known) if known else None

    @property
    def latency(self) -> Latency | None:
        """Latency of the first training that was timed: it does not depend on the weights."""
        return next((entry.latency_ms for entry in self.entries if entry.latency_ms is not None), None)

    def difference(self, other: "Row", column: str) -> Difference:
        """Return the mean of this row minus the other, with its paired interval over the seeds."""
        self._check_same_seeds(other)
        if column == "product":
            return self._compare_modes(other)
        means = (
            np.mean([getattr(entry.episodes, column) for entry in row.entries], axis=0)
            for row in (self, other)
        )
        return replace(paired_difference(*means), n=self._count_samples(other))

    def _compare_modes(self, other: "Row") -> Difference:
        """Return the difference of success × entropy."""
        # a policy whose trainings repeat one path each has entropy 0, which needs no further samples
        samples = [row.distinct_paths for row in (self, other) if any(o.distinct > 1 for o in row.outcomes)]
        n = min([len(self.first.episodes), *samples]) if samples else 1
        return Difference(**vars(compare_diversity(self.outcomes, other.outcomes, n=n).product))

    def _count_samples(self, other: "Row") -> int:
        """Return the number of seeds, or of distinct paths if one of two rows has fewer."""
        return min(len(self.first.episodes), self.distinct_paths, other.distinct_paths)

    def mcnemar(self, other: "Row") -> McNemar | None:
        """Test this row's successes against the other's, over common training seeds.

        Returns:
            None without common seeds, or if one row has too few distinct paths to show a difference.

        Pairs are a seed and a training each. Trainings share their seeds, so with several of them the
        p-value is somewhat too small; the paired interval is not affected.
        """
        self._check_same_seeds(other)
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

    def decide(self, other: "Row", column: str) -> str:
        """Return which of two rows is ahead; successes also need McNemar's test."""
        test = self.mcnemar(other) if column == "success" else None
        found = self.difference(other, column)
        return verdict(found, a=self.label, b=other.label, p=None if test is None else test.p)

    def _check_same_seeds(self, other: "Row") -> None:
        first, second = (row.first.episodes.seed for row in (self, other))
        if first != second:
            raise ComparisonError(
                f"{self.name!r} and {other.name!r} were rolled out from different seeds, {len(first)} from "
                f"{first[0]} to {first[-1]} and {len(second)} from {second[0]} to {second[-1]}: use the same "
                "--episodes and --seed-start"
            )
