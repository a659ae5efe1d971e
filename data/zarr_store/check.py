"""Reading a store from end to end, every chunk of every array, to find all that is wrong with it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from nsde_policy.data.zarr_store.arrays import StoredArray
from nsde_policy.data.zarr_store.chunks import chunk_faults
from nsde_policy.data.zarr_store.store import Store, declared_angles
from nsde_policy.errors import DemoError

MAX_FAULTS = 100
"""Missing or damaged chunks listed per array."""
Reading = tuple[StoredArray, int, int]
"""An array, and the frames of it to decode at once."""


def check_store(
    path: Path | str,
    *,
    episode_ends: str = "episode_ends",
    accept_omitted_chunks: bool = False,
    progress: Callable[[Sequence[Reading]], Iterable[Reading]] = iter,
) -> list[str]:
    """Every problem found, one line each; a store that cannot be opened at all raises instead.

    Args:
        path: a zarr directory or a zip of one.
        episode_ends: the array below `meta/` that holds the episode ends.
        accept_omitted_chunks: believe the fill value where a chunk is not there.
        progress: wraps the list of readings, for a progress bar.
    """
    with Store(Path(path), episode_ends=episode_ends, accept_omitted_chunks=accept_omitted_chunks) as store:
        arrays, problems = _open_all(store)
        plan: list[Reading] = []
        for array, frames in arrays:
            found = (
                f"chunk {fault.key} {fault.finding}"
                for fault in chunk_faults(array.files, array.name, array.zarray, array.metadata, frames)
                if not (fault.missing and accept_omitted_chunks)
            )
            faults = list(islice(found, MAX_FAULTS))
            problems += faults
            if not faults:
                step = array.rows_per_read
                plan += [(array, row, min(row + step, frames)) for row in range(0, frames, step)]
        for array, start, stop in progress(plan):
            problems += _decode(array, start, stop)
    return problems


def _open_all(store: Store) -> tuple[list[tuple[StoredArray, int]], list[str]]:
    """Arrays that can be opened with their frames to read, and what is wrong with the others."""
    opened, problems = [], []
    for name in store.names("data"):
        try:
            array = store.array(name)
            declared_angles(array)
            opened.append(array)
        except DemoError as error:
            problems.append(str(error))
    try:
        ends, opened = store.episodes([array.name for array in opened])
        frames = int(ends[-1])
    except DemoError as error:
        problems.append(str(error))
        return [(array, array.shape[0]) for array in opened], problems
    return [(array, frames) for array in opened], problems


def _decode(array: StoredArray, start: int, stop: int) -> list[str]:
    try:
        values = array.read(start, stop)
    except DemoError as error:
        return [str(error)]
    bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
    return [f"{array.name}: {bad} NaN or infinite numbers in frames {start} to {stop}"] if bad else []
