"""Complete check of a store: every chunk of every array is decoded."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import numpy as np

from nsde_policy.data.images import check_scale
from nsde_policy.data.zarr_store.arrays import StoredArray
from nsde_policy.data.zarr_store.roles import is_colour
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.errors import DemoError

MAX_FAULTS = 100
"""Maximum number of missing or damaged chunks listed per array."""
Progress = Callable[[range], Iterable[int]]
"""Wraps the first frames of the chunks of an array, for a progress bar."""


def check_store(
    path: Path | str,
    *,
    accept_omitted_chunks: bool = False,
    progress: Progress = iter,
) -> list[str]:
    """Return all problems of a store, one line each; `progress` shows a bar for each array.

    With `accept_omitted_chunks`, a chunk that does not exist holds the fill value.

    Raises:
        DemoError: If the store cannot be opened at all.
    """
    problems: list[str] = []
    with Store(Path(path), accept_omitted_chunks=accept_omitted_chunks) as store:
        arrays: list[StoredArray] = []
        for name in store.find_arrays("data"):
            try:
                array = store.open_array(name)
                _ = array.angles  # raises for columns that do not exist
                arrays.append(array)
            except DemoError as error:
                problems.append(str(error))
        frames = None
        try:
            ends, _ = store.open_episodes([array.name for array in arrays])
            frames = int(ends[-1])
        except DemoError as error:
            problems.append(str(error))
        for array in arrays:
            problems += _check_array(array, array.shape[0] if frames is None else frames, progress)
    return problems


def _check_array(array: StoredArray, frames: int, progress: Progress) -> list[str]:
    """Decode the first frames of an array, chunk by chunk, and return its problems."""
    problems = list(islice(array.find_faults(frames), MAX_FAULTS))
    if problems:
        return problems
    brightest = 0.0
    for start in progress(range(0, frames, array.rows_per_read)):
        stop = min(start + array.rows_per_read, frames)
        try:
            values = array.read(start, stop)
        except DemoError as error:
            problems.append(str(error))
            continue
        if bad := np.count_nonzero(~np.isfinite(values)):
            problems.append(f"{array.name}: {bad} NaN or infinite numbers in frames {start} to {stop}")
        brightest = max(brightest, float(values.max()))
    if is_colour(array.shape):
        try:
            check_scale(array.name, array.zarray.dtype, brightest)
        except DemoError as error:
            problems.append(str(error))
    return problems
