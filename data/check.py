"""Complete check of demonstrations: every frame of every array is read."""

from itertools import islice
from pathlib import Path

import numpy as np

from nsde_policy.errors import DemoError

from .readers import open_source
from .roles import check_scale, is_colour
from .source import Progress, SourceArray

MAX_FAULTS = 100
"""Maximum number of missing or damaged parts listed per array."""


def check_store(
    path: Path | str,
    *,
    accept_omitted_chunks: bool = False,
    progress: Progress = iter,
) -> list[str]:
    """Return all problems of a store, one line each; `progress` shows a bar for each array."""
    problems: list[str] = []
    with open_source(path, accept_omitted_chunks=accept_omitted_chunks) as source:
        arrays: dict[str, SourceArray] = {}
        for name in source.find_arrays():
            try:
                arrays[name] = source.open_array(name)
            except DemoError as error:
                problems.append(str(error))
        frames = None
        try:
            ends, _ = source.open_episodes(list(arrays))
            frames = int(ends[-1])
        except DemoError as error:
            problems.append(str(error))
        for array in arrays.values():
            problems += _check_array(array, array.shape[0] if frames is None else frames, progress)
    return list(dict.fromkeys(problems))


def _check_array(array: SourceArray, frames: int, progress: Progress) -> list[str]:
    """Decode the first frames of an array, block by block, and return its problems."""
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
            check_scale(array.name, array.dtype, brightest)
        except DemoError as error:
            problems.append(str(error))
    return problems
