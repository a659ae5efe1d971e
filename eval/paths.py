"""Paths of episodes: where an episode went, at few moments, and which episodes repeat a path.

A deterministic policy repeats one path if it starts in one place. Such episodes are not independent, so
intervals count distinct paths.
"""

from collections.abc import Sequence

import numpy as np

from nsde_policy.tasks import Task

PATH_POINTS = 32
"""Moments of an episode that are kept, evenly spread over its time."""
SAME_PATH = 1e-3
"""Two paths are the same if they differ by no more than this share of the extent of all paths, in every
component at every moment kept: more than rounding errors, less than the noise of a stochastic policy."""


def shorten_path(states: Sequence[np.ndarray], task: Task) -> np.ndarray:
    """Return the states of an episode at `PATH_POINTS` moments, (PATH_POINTS, components).

    The components are those that the task draws, `Task.path_of`, or else all. Between two states, values are
    interpolated.
    """
    columns = slice(None) if task.path_of is None else list(task.path_of)
    values = np.asarray(states, dtype=float)[:, columns]
    at = np.linspace(0, len(values) - 1, PATH_POINTS)
    before = np.minimum(at.astype(int), max(len(values) - 2, 0))
    after = np.minimum(before + 1, len(values) - 1)
    path: np.ndarray = values[before] + (at - before)[:, None] * (values[after] - values[before])
    return path


def number_paths(paths: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return for each path the number of the first one that is the same, counted over distinct paths.

    Args:
        paths: What `shorten_path` returned for each episode of one policy.
    """
    found = np.stack(paths)
    extent = found.max(axis=(0, 1)) - found.min(axis=(0, 1))
    moving = extent > 1e-9 * (1.0 + np.abs(found).max(axis=(0, 1)))
    scaled = found[..., moving] / extent[moving]
    numbers: list[int] = []
    firsts: list[int] = []
    for i, path in enumerate(scaled):
        same = np.abs(scaled[firsts] - path).max(axis=(1, 2), initial=0.0) <= SAME_PATH
        numbers.append(int(np.argmax(same)) if same.any() else len(firsts))
        if not same.any():
            firsts.append(i)
    return tuple(numbers)
