"""Summary of episodes: means over the trainings of one policy, with 95 % intervals."""

import abc
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from nsde_policy.eval.compare.entries import Episodes
from nsde_policy.eval.compare.modes import Diversity, ModeOutcomes, estimate_diversity
from nsde_policy.eval.paths import number_paths
from nsde_policy.eval.statistics import Estimate, mean, proportion


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
        drawn = [episodes.unpack_paths() for episodes in self.trainings]
        known = [paths for paths in drawn if paths is not None]
        if len(drawn) > 1 and len(known) == len(drawn):
            return number_paths(np.concatenate(known))
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

    @property
    def mean_score(self) -> float:
        """Mean score over all episodes, without the interval, which takes long to find."""
        return float(np.mean([*chain.from_iterable(episodes.score for episodes in self.trainings)]))

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
        found = [episodes.outcomes for episodes in self.trainings]
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
        columns = [episodes.success for episodes in self.trainings if episodes.success is not None]
        if len(columns) < len(self.trainings):
            return None
        return proportion(sum(map(sum, columns)), sum(map(len, columns)), independent=self.distinct_paths)
