"""What is special or often a mistake in demonstrations, and what stands out in single episodes."""

from collections.abc import Iterator, Sequence

import numpy as np

from .action_columns import NO_COLUMN, find_binary, format_matches
from .angles import find_wrapped_columns
from .types import Demonstrations, Ints

SHOWN_ITEMS = 8
"""Most episodes or columns that a line names."""
TIME_ERROR = 1e-3
"""Largest difference of the steps of a clock, as a fraction of a step."""
STILL_CHANGE = 1e-3
"""Largest change of a still column over one frame, in its standard deviations."""
STILL_FRACTION = 0.1
"""Fraction of an episode that may be still at its ends."""
JUMP = 20.0
"""A jump is this many times as large as 99 of 100 steps of its column."""
RARE = 0.25
"""Largest fraction of episodes with jumps of a column that are still unusual."""


def find_oddities(demos: Demonstrations) -> Iterator[str]:
    """Describe everything in demonstrations that is special or often a mistake, one line each."""
    if repeats := _find_repeats(demos):
        yield (
            f"{len(repeats)} of {len(demos)} episodes are identical to earlier ones ({_list([*repeats])}): "
            "check whether they were recorded or converted twice"
        )
    values, names = _join_columns(demos)
    acts = names[demos.obs.shape[1] :]
    if binary := [f"{acts[i]} ({low:g} or {high:g})" for i, low, high in find_binary(demos)]:
        yield f"binary actions: {_list(binary)}; commands are rounded, unless --demos.no-round-binary"
    constant = np.flatnonzero(np.ptp(values, axis=0) == 0)
    if len(constant):
        yield (
            f"columns that never change: {_list([names[i] for i in constant])}; leave out observations with "
            "--demos.obs-columns"
        )
    steps = np.delete(np.diff(demos.obs.astype(np.float64), axis=0), demos.episode_ends[:-1] - 1, axis=0)
    rounding = 2 * np.finfo(np.float32).eps * np.abs(demos.obs).max(axis=0)
    usual = np.quantile(steps, 0.5, axis=0)  # np.median imports numpy.ma, which is slow
    grows = (usual > 0) & (np.ptp(steps, axis=0) <= TIME_ERROR * usual + rounding) & (usual > 2 * rounding)
    for column in np.flatnonzero(grows):
        yield (
            f"{names[column]} looks like time, it grows by {usual[column]:.3g} in every frame: leave it out "
            "with --demos.obs-columns"
        )
    copied = format_matches(_match_next(demos))
    if copied:
        yield f"{copied} of the next frame, exactly: no commands were recorded, only where the robot went"
    still = _count_still_frames(demos, values).sum(axis=0)
    if still.sum() > STILL_FRACTION * len(demos.obs):
        at_start, at_end = still / len(demos.obs)
        yield (
            f"nothing moves in {at_start:.0%} of all frames at the start of episodes and in {at_end:.0%} at "
            "their end: cut them off with `data edit --trim`"
        )


def _find_repeats(demos: Demonstrations) -> dict[int, int]:
    """Return the episodes that are identical to an earlier one, and that one."""
    first: dict[str, int] = {}
    copied = [first.setdefault(each, k) for k, each in enumerate(demos.episode_fingerprints)]
    return {k: original for k, original in enumerate(copied) if original != k}


def _match_next(demos: Demonstrations) -> list[int]:
    """Return the observation column that each action column equals one frame later, `NO_COLUMN` for none."""
    now = np.delete(np.arange(len(demos.obs)), demos.episode_ends - 1)
    moving = np.flatnonzero(np.ptp(demos.obs, axis=0) > 0)
    content = (demos.obs[now + 1] + 0.0).T  # without a negative zero, whose bytes differ
    first = {content[column].tobytes(): int(column) for column in moving[::-1]}
    return [first.get(action.tobytes(), NO_COLUMN) for action in (demos.act[now] + 0.0).T]


def find_flags(demos: Demonstrations) -> list[list[str]]:
    """Return what stands out in each episode, a few words each: still ends, jumps and copies."""
    values, names = _join_columns(demos)
    angles = [*demos.angles, *(demos.obs.shape[1] + i for i in demos.act_angles)]
    angles = sorted({*angles, *find_wrapped_columns(values, demos.episode_ends)})
    steps = _measure_steps(demos, values)
    steps[:, angles] = np.minimum(steps[:, angles], 2 * np.pi - steps[:, angles])
    usual = np.quantile(steps, 0.99, axis=0)
    jumps = (steps > JUMP * usual) & (usual > 0)
    # what many episodes do is how the robot works
    jumps &= np.logical_or.reduceat(jumps, demos.starts).mean(axis=0) <= RARE
    flags, repeats = list[list[str]](), _find_repeats(demos)
    for k, (first, last) in enumerate(_count_still_frames(demos, values).tolist()):
        remarks, frames = list[str](), slice(demos.starts[k], demos.episode_ends[k])
        if first + last > STILL_FRACTION * demos.lengths[k]:
            remarks.append(f"still: {first} frames at the start, {last} at the end")
        if jumps[frames].any():
            frame, column = np.argwhere(jumps[frames])[0]
            remarks.append(f"jump in {names[column]} at frame {frame}")
        if k in repeats:
            remarks.append(f"same as episode {repeats[k]}")
        flags.append(remarks)
    return flags


def _join_columns(demos: Demonstrations) -> tuple[np.ndarray, list[str]]:
    """Return the columns of observations and actions, (frames, columns), and their names or numbers."""
    names = [
        *(demos.obs_names or [f"observation {i}" for i in range(demos.obs.shape[1])]),
        *(demos.act_names or [f"action {i}" for i in range(demos.act.shape[1])]),
    ]
    return np.concatenate([demos.obs, demos.act], axis=1).astype(np.float64), names


def _count_still_frames(demos: Demonstrations, values: np.ndarray) -> Ints:
    """Return the frames at the start and at the end of each episode in which nothing moves, (episodes, 2)."""
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


def _list(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:SHOWN_ITEMS])) + (", …" if items[SHOWN_ITEMS:] else "")
