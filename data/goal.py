"""The goal of a task as its demonstrations show it: where they end, in the columns that agree."""

from dataclasses import dataclass

import numpy as np

from .angles import wrap_columns
from .types import Demonstrations

GATE = 6.4
"""Observations are near the goal if their squared distance per direction, in variances, is below this."""
AGREEMENT = 0.25
"""Columns whose spread at the end is below this fraction of their spread over all frames agree."""
UNDECIDED = 1.5
"""Columns whose spread is within this factor of that bound agree in some samples of the episodes only."""
ADDED_VARIANCE = 1e-3
"""Fraction of each column's variance added to it, for columns that depend on each other."""
MOST_EARLY = 0.05
"""Largest fraction of frames near the goal in the first half of a median demonstration."""
EXPLAINED = 0.95
"""Fraction of the variance of image features at the ends that the compared components explain."""
FEWEST_ENDS = 12
"""Fewest demonstrations from which a goal is measured. Ten are too few: whether they seemed to share a goal
depended on the seed of the encoder of their frames."""


@dataclass(frozen=True)
class Goal:
    """Normal distribution of the last observations, in the columns that agree."""

    columns: tuple[int, ...]
    mean: np.ndarray
    """Mean, on the circle for angles, (columns,)."""
    whitening: np.ndarray
    """Directions that count, one per matrix column, scaled to unit variance, (columns, directions)."""
    angles: tuple[int, ...]
    """Columns that are angles, as indices into `columns`."""

    def distance(self, obs: np.ndarray) -> np.ndarray:
        """Return the squared Mahalanobis distance of observations (n, obs_dim), per direction, (n,)."""
        difference = wrap_columns(obs[:, self.columns] - self.mean, self.angles)
        squares: np.ndarray = ((difference @ self.whitening) ** 2).mean(axis=1)
        return squares

    def frames_nearby(self, demos: Demonstrations) -> float:
        """Return how many frames of a demonstration are near the goal, on average.

        It is 0 if demonstrations are near it in their first half already: what holds from the beginning is
        not a goal. Many demonstrations end at once while others stay, so a median would jump between both.
        """
        near = self.distance(demos.obs.astype(np.float64)) < GATE
        spans = list(zip(demos.starts, demos.lengths, strict=True))
        early = np.median([near[start : start + length // 2].mean() for start, length in spans])
        if early > MOST_EARLY:
            return 0.0
        return float(near.sum() / len(demos))


def is_goal_certain(demos: Demonstrations, image_features: int = 0) -> bool:
    """Return whether each measured column clearly agrees at the end, or clearly does not.

    Also True if no column agrees: then there certainly is no goal. Otherwise, other episodes of the same
    demonstrator would show another goal. The last `image_features` columns, features of images, are not
    measured.
    """
    _, differences, spread = _measure_ends(demos)
    measured = slice(demos.obs.shape[1] - image_features)
    end_spread, bound = differences.std(axis=0)[measured], AGREEMENT * spread[measured]
    is_undecided = (end_spread > bound / UNDECIDED) & (end_spread < bound * UNDECIDED)
    return not is_undecided.any()


def find_goal(demos: Demonstrations, image_features: int = 0) -> Goal | None:
    """Measure where demonstrations end; None if they are few, or agree in no column.

    The last `image_features` columns of their observations are features of images.
    """
    if len(demos) < FEWEST_ENDS:
        return None
    mean, differences, spread = _measure_ends(demos)
    end_spread = differences.std(axis=0)
    agrees = (end_spread < AGREEMENT * spread) & (end_spread > 0)
    columns = tuple(np.flatnonzero(agrees).tolist())
    if not columns:
        return None
    centered = differences[:, columns]
    basis = _find_directions(centered, np.array(columns) >= demos.obs.shape[1] - image_features)
    covariance = np.atleast_2d(np.cov(centered @ basis, rowvar=False))
    covariance += ADDED_VARIANCE * np.diag(np.diag(covariance))
    whitening = basis @ np.linalg.cholesky(np.linalg.inv(covariance))
    at = tuple(i for i, column in enumerate(columns) if column in demos.angles)
    return Goal(columns, mean[list(columns)], whitening, at)


def _measure_ends(demos: Demonstrations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean of the last observations, their differences from it, and the spread of all frames."""
    obs, angles = demos.obs.astype(np.float64), list(demos.angles)
    ends = obs[demos.episode_ends - 1]
    mean = circular_mean(ends, angles)
    spread = wrap_columns(obs - circular_mean(obs, angles), angles).std(axis=0)
    return mean, wrap_columns(ends - mean, angles), spread


def _find_directions(centered: np.ndarray, is_feature: np.ndarray) -> np.ndarray:
    """Return the directions in which ends are compared, one per matrix column.

    Measured columns count by themselves. Features of images are redundant and noisy: of them, the principal
    components that explain most of the variance of the ends count, and the rest is noise that would hide it.
    """
    basis = np.eye(len(is_feature))
    if not is_feature.any():
        return basis
    variances, axes = np.linalg.eigh(
        np.cov(centered[:, is_feature], rowvar=False).reshape(2 * [is_feature.sum()])
    )
    explained = np.cumsum(variances[::-1]) / variances.sum()
    principal = axes[:, ::-1][:, : int(np.searchsorted(explained, EXPLAINED)) + 1]
    components = np.zeros((len(is_feature), principal.shape[1]))
    components[is_feature] = principal
    return np.concatenate([basis[:, ~is_feature], components], axis=1)


def circular_mean(values: np.ndarray, angles: list[int]) -> np.ndarray:
    """Return the mean of each column, on the circle for angles."""
    mean: np.ndarray = values.mean(axis=0)
    mean[angles] = np.arctan2(np.sin(values[:, angles]).mean(axis=0), np.cos(values[:, angles]).mean(axis=0))
    return mean
