"""Angles, which jump by 2π at the ends of their range: unwrapping of paths, wrapping of differences."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nsde_policy.core.spec import wrap_angle

TURN = 2 * math.pi


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


def find_wrapped_columns(values: npt.NDArray[np.floating], ends: npt.NDArray[np.int64]) -> list[int]:
    """Return the columns that span at most one turn and jump by nearly a whole one within an episode."""
    steps = np.abs(np.delete(np.diff(values, axis=0), ends[:-1] - 1, axis=0))
    jumps = (steps > 0.9 * TURN).any(0)
    within_a_turn = np.ptp(values, axis=0) <= TURN * (1 + 1e-4)
    return np.flatnonzero(jumps & within_a_turn).tolist()
