"""Angles, which jump by 2π at the ends of their range: unwrapping of paths, wrapping of differences."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nsde_policy.core.spec import wrap_angle

TURN = 2 * math.pi
"""One turn in radians."""


def unwrap_angles(
    path: npt.NDArray[np.float32], dims: Sequence[int], *, anchor: int = 0
) -> npt.NDArray[np.float32]:
    """Make the angle columns of a path continuous in time, (..., T, d) to (..., T, d).

    Whole turns are added to the columns `dims`, so that no step exceeds half a turn. The frame `anchor`
    keeps its recorded value, and so does every frame with no jump between it and `anchor`.
    """
    if not dims or path.shape[-2] < 2:
        return path
    columns = list(dims)
    angles = path[..., columns].astype(np.float64)
    turns = np.zeros_like(angles)
    turns[..., 1:, :] = np.cumsum(np.rint(np.diff(angles, axis=-2) / TURN), axis=-2)
    turns -= np.take(turns, [anchor], axis=-2)
    unwrapped = path.copy()
    unwrapped[..., columns] = angles - TURN * turns
    return unwrapped


def wrap_columns(difference: npt.NDArray[np.float64], dims: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return differences (..., d) with those of the angles `dims` the shorter way round, in [-π, π)."""
    if not dims:
        return difference
    wrapped, columns = difference.copy(), list(dims)
    wrapped[..., columns] = wrap_angle(difference[..., columns])
    return wrapped
