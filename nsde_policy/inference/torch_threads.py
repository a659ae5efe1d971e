"""Number of torch threads of a plan, independent of the settings of the thread that asks for it.

A small network is fastest with one thread, and on a busy computer much faster: threads that share an
operation wait for each other, also for one that another process keeps from running.

`torch.set_num_threads` sets the number of the calling thread, and that of threads that use torch for the
first time later. A plan therefore runs in a thread of this package with its own number, unless the calling
thread already has that number.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from nsde_policy.planner.worker import PlannerThread, is_planner_thread

Returned = TypeVar("Returned")
_setting = threading.Lock()
_shared: PlannerThread | None = None


def run_with_threads(function: Callable[[], Returned], threads: int) -> Returned:
    """Call a function with a number of torch threads, and leave the caller's number as it is.

    The function runs in the calling thread if that has the number already or is a `PlannerThread`, and in a
    shared `PlannerThread` otherwise, one call at a time.
    """
    if torch.get_num_threads() != threads:
        if not is_planner_thread():
            return _get_shared().submit(lambda: run_with_threads(function, threads)).result()
        _set_own_threads(threads)
    return function()


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Set the number of torch threads for a while: one for single rows, all cores for convolutions."""
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


def _set_own_threads(threads: int) -> None:
    """Set the number of the calling thread, and restore the one that new threads get."""
    with _setting:
        default: list[int] = []
        _call_in_new_thread(lambda: default.append(torch.get_num_threads()))
        torch.set_num_threads(threads)
        _call_in_new_thread(lambda: torch.set_num_threads(*default))


def _call_in_new_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def _get_shared() -> PlannerThread:
    global _shared
    with _setting:
        _shared = _shared or PlannerThread()
        return _shared


def _forget_shared() -> None:
    """Drop the thread and the lock after a fork, which copies neither."""
    global _shared, _setting
    _shared, _setting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)
