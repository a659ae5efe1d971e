"""Complete check of a store: every chunk of every array is decoded."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from nsde_policy.data.images import describe_scale
from nsde_policy.data.zarr_store.arrays import StoredArray
from nsde_policy.data.zarr_store.roles import is_colour
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.errors import DemoError

MAX_FAULTS = 100
"""Maximum number of missing or damaged chunks listed per array."""
FrameRange = tuple[StoredArray, int, int]
"""An array with the first and one past the last frame to decode."""


def check_store(
    path: Path | str,
    *,
    episode_ends: str = "episode_ends",
    accept_omitted_chunks: bool = False,
    progress: Callable[[Sequence[FrameRange]], Iterable[FrameRange]] = iter,
) -> list[str]:
    """Find all problems of a store.

    Args:
        path: Zarr directory or a zip of one.
        episode_ends: Array below `meta/` that holds the episode ends.
        accept_omitted_chunks: Use the fill value for chunks that do not exist.
        progress: Wraps the sequence of frame ranges, for a progress bar.

    Returns:
        One line per problem.

    Raises:
        DemoError: If the store cannot be opened at all.
    """
    with Store(Path(path), episode_ends=episode_ends, accept_omitted_chunks=accept_omitted_chunks) as store:
        arrays, problems = _open_all(store)
        ranges: list[FrameRange] = []
        for array, frames in arrays:
            faults = [fault.message for fault in islice(array.find_faults(frames), MAX_FAULTS)]
            problems += faults
            if not faults:
                step = array.rows_per_read
                ranges += [(array, row, min(row + step, frames)) for row in range(0, frames, step)]
        brightest = {array.name: -np.inf for array, _ in arrays if is_colour(array.shape)}
        for array, start, stop in progress(ranges):
            try:
                values = array.read(start, stop)
            except DemoError as error:
                problems.append(str(error))
                continue
            if bad := np.count_nonzero(~np.isfinite(values)):
                problems.append(f"{array.name}: {bad} NaN or infinite numbers in frames {start} to {stop}")
            if array.name in brightest:
                brightest[array.name] = max(brightest[array.name], float(values.max()))
        dtypes = {array.name: array.zarray.dtype for array, _ in arrays}
        scales = (describe_scale(name, dtypes[name], value) for name, value in brightest.items())
        problems += [wrong for wrong in scales if wrong]
    return problems


def _open_all(store: Store) -> tuple[list[tuple[StoredArray, int]], list[str]]:
    """Return the arrays that can be opened with their number of frames, and the problems of the others."""
    opened, problems = [], []
    for name in store.find_arrays("data"):
        try:
            array = store.open_array(name)
            _ = array.angles  # raises for columns that do not exist
            opened.append(array)
        except DemoError as error:
            problems.append(str(error))
    try:
        ends, opened = store.open_episodes([array.name for array in opened])
        return [(array, int(ends[-1])) for array in opened], problems
    except DemoError as error:
        return [(array, array.shape[0]) for array in opened], [*problems, str(error)]
