"""Figures over the episodes of one or more trainings."""

import abc
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

from .episodes import ROUGHNESS, Episodes
from .modes import estimate_modes
from .statistics import Estimate, mean, proportion


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
    def roughness(self) -> Estimate | None:
        """Mean roughness of the commands of all episodes; None if it is not known of all trainings."""
        columns = [episodes.metrics.get(ROUGHNESS, ()) for episodes in self.trainings]
        return self._mean(columns) if all(columns) else None

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
