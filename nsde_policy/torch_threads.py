"""Number of torch threads of a computation.

A small network is fastest with one thread, and on a busy computer much faster: threads that share an
operation wait for each other, also for one that another process keeps from running.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Set the number of torch threads of the calling thread for a while.

    Threads that use torch for the first time meanwhile get the same number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def count_cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the computer has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_threads() -> int:
    """Return the number of torch threads for convolutions: `OMP_NUM_THREADS` if it is set, or all cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(asked) if asked.isdecimal() and int(asked) > 0 else count_cores()
