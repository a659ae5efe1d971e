"""What is special or often a mistake in demonstrations, one line each."""

from collections.abc import Iterator, Sequence

import numpy as np

from nsde_policy.data.action_columns import NO_COLUMN, find_binary, format_matches
from nsde_policy.data.flags import STILL_SHARE, count_still_frames, name_columns
from nsde_policy.data.types import Demonstrations

SHOWN_ITEMS = 8
"""Most episodes or columns that a line names."""
COMPARED_FRAMES = 2_000
"""Frames that are compared with the next ones, spread evenly over the demonstrations."""
TIME_ERROR = 1e-3
"""Largest difference of the steps of a clock, as a share of a step."""


def find_oddities(demos: Demonstrations) -> list[str]:
    """Return a line about everything in demonstrations that is special or often a mistake."""
    return [*_find_repeats(demos), *_find_columns(demos.without_image_features())]


def _find_repeats(demos: Demonstrations) -> Iterator[str]:
    first: dict[str, int] = {}
    repeats = [i for i, each in enumerate(demos.episode_fingerprints) if first.setdefault(each, i) != i]
    if repeats:
        yield (
            f"{len(repeats)} of {len(demos)} episodes are identical to earlier ones ({_list(repeats)}): "
            "check whether they were recorded or converted twice"
        )
    if len(demos) == 1:
        yield "there is only 1 episode: nothing can be held out for validation, record more"


def _find_columns(demos: Demonstrations) -> Iterator[str]:
    values, names = np.concatenate([demos.obs, demos.act], axis=1), name_columns(demos)
    acts = names[demos.obs.shape[1] :]
    if binary := [f"{acts[i]} ({low:g} or {high:g})" for i, low, high in find_binary(demos)]:
        yield f"binary actions: {_list(binary)}; plans are rounded, unless --demos.no-round-binary"
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
    still = count_still_frames(demos).sum(axis=0)
    if still.sum() > STILL_SHARE * len(demos.obs):
        at_start, at_end = still / len(demos.obs)
        yield (
            f"nothing moves in {at_start:.0%} of all frames at the start of episodes and in {at_end:.0%} at "
            "their end: cut them off with `data edit --trim`"
        )


def _match_next(demos: Demonstrations) -> list[int]:
    """Return the observation column that each action column equals one frame later, `NO_COLUMN` for none."""
    now = np.delete(np.arange(len(demos.obs)), demos.episode_ends - 1)
    now = now[:: -(-len(now) // COMPARED_FRAMES)]
    moving, columns = np.ptp(demos.obs, axis=0) > 0, []
    for action in demos.act[now].T:
        same = np.flatnonzero((action[:, None] == demos.obs[now + 1]).all(axis=0) & moving)
        columns.append(int(same[0]) if len(same) else NO_COLUMN)
    return columns


def _list(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:SHOWN_ITEMS])) + (", …" if items[SHOWN_ITEMS:] else "")
