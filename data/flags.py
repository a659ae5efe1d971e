"""What stands out in single episodes: still ends, jumps, outliers and copies."""

import numpy as np

from nsde_policy.data.angles import find_wrapped_columns
from nsde_policy.data.types import Demonstrations, Ints

STILL_CHANGE = 1e-3
"""Largest change of a still column over one frame, in its standard deviations."""
STILL_SHARE = 0.1
"""Share of an episode that may be still at its ends."""
JUMP, OUTLIER = 20.0, 8.0
"""A jump is this many times as large as 99 of 100 steps of its column, an outlier this many times as far from
the median as 3 of 4 values."""
RARE = 0.25
"""Largest share of episodes with jumps or outliers of a column that are still unusual."""


def find_flags(demos: Demonstrations) -> list[list[str]]:
    """Return what stands out in each episode, a few words each."""
    values, names = np.concatenate([demos.obs, demos.act], axis=1).astype(np.float64), name_columns(demos)
    angles = [*demos.angles, *(demos.obs.shape[1] + i for i in demos.act_angles)]
    angles = sorted({*angles, *find_wrapped_columns(values, demos.episode_ends)})
    steps = _measure_steps(demos, values)
    steps[:, angles] = np.minimum(steps[:, angles], 2 * np.pi - steps[:, angles])
    usual = np.quantile(steps, 0.99, axis=0)
    away = np.abs(values - np.median(values, axis=0))
    width = np.quantile(away, 0.75, axis=0)
    jumps = (steps > JUMP * usual) & (usual > 0)
    outliers = (away > OUTLIER * width) & (width > 0)
    outliers[:, angles] = False
    for marks in (jumps, outliers):  # what many episodes do is how the robot works
        marks &= np.logical_or.reduceat(marks, demos.starts).mean(axis=0) <= RARE
    flags: list[list[str]] = []
    seen: dict[str, int] = {}
    still = count_still_frames(demos).tolist()
    for k, (start, end) in enumerate(zip(demos.starts.tolist(), demos.episode_ends.tolist(), strict=True)):
        found, (first, last) = [], still[k]
        if first + last > STILL_SHARE * (end - start):
            found.append(f"still: {first} frames at the start, {last} at the end")
        for what, marks in (("jump", jumps), ("outlier", outliers)):
            if marks[start:end].any():
                frame, column = np.argwhere(marks[start:end])[0]
                found.append(f"{what} in {names[column]} at frame {frame}")
        copy = seen.setdefault(demos.episode_fingerprints[k], k)
        if copy != k:
            found.append(f"same as episode {copy}")
        flags.append(found)
    return flags


def name_columns(demos: Demonstrations) -> list[str]:
    """Return names of the columns of observations and actions, or their numbers."""
    return [
        *(demos.obs_names or [f"observation {i}" for i in range(demos.obs.shape[1])]),
        *(demos.act_names or [f"action {i}" for i in range(demos.act.shape[1])]),
    ]


def count_still_frames(demos: Demonstrations) -> Ints:
    """Return the frames at the start and at the end of each episode in which nothing moves, (episodes, 2)."""
    values = np.concatenate([demos.obs, demos.act], axis=1).astype(np.float64)
    is_still = (_measure_steps(demos, values) <= STILL_CHANGE * values.std(axis=0)).all(axis=1)
    still = np.zeros((len(demos), 2), np.int64)
    for k, (start, end) in enumerate(zip(demos.starts, demos.episode_ends, strict=True)):
        moving = np.flatnonzero(~is_still[start + 1 : end])
        still[k] = (moving[0], end - start - 2 - moving[-1]) if len(moving) else (end - start, 0)
    return still


def _measure_steps(demos: Demonstrations, values: np.ndarray) -> np.ndarray:
    """Return how far columns move from the frame before, 0 at the start of episodes."""
    steps = np.abs(np.diff(values, axis=0, prepend=values[:1]))
    steps[demos.starts] = 0
    return steps
