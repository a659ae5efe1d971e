"""Executors of functions on processes of this machine or on a Ray cluster.

This module needs no torch, which every process would load before its work. Ray is imported when a pool is
opened.
"""

import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import Any

from tqdm import tqdm

from nsde_policy.errors import ConfigError, describe_problem, import_optional, summarize_error
from nsde_policy.version import __version__


def open_pool(
    workers: int,
    prepare: Callable[..., None] | None = None,
    *arguments: object,
    ray: str | None = None,
    gpus: float = 0.0,
) -> "ProcessPool | RayPool":
    """Open a pool of processes on this machine, or of tasks on a Ray cluster, see `connect`.

    Each process first calls `prepare`, a function of a module, with `arguments`, which are sent to it once.
    On a cluster, each task takes a CPU and the fraction `gpus` of a GPU.
    """
    if ray is None:
        return ProcessPool(workers, prepare, *arguments)
    return RayPool(connect(ray, workers), gpus, prepare, *arguments)


def connect(address: str, workers: int) -> ModuleType:
    """Connect to a Ray cluster until this process ends, or keep the connection that it has already.

    The address "local" starts Ray here, with `workers` CPUs; others: "auto", "HOST:6379", "ray://HOST:10001".
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_optional("ray", "ray")
    if ray.is_initialized():
        return ray
    settings = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():  # Ray itself tries for minutes, then ends the process
            socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=20).close()
        ray.init(address or "auto", log_to_driver=False, logging_level=logging.ERROR, **settings)
    except (Exception, SystemExit) as error:  # of many types, by what is wrong or found at the address
        problem = describe_problem(error).partition(". ")[0]  # the rest is about flags of Ray
        raise ConfigError(
            f"no Ray cluster at {address}: {problem}; expected --ray local, auto, HOST:6379 or "
            "ray://HOST:10001. `ray start --head` starts a cluster"
        ) from error
    return ray


class ProcessPool(ProcessPoolExecutor):
    """Executor of spawned processes that leave Ctrl-C to their parent and end when it does, even if killed.

    Each process first calls `prepare`, a function of a module, with `arguments`.
    """

    def __init__(self, workers: int, prepare: Callable[..., None] | None = None, *arguments: object) -> None:
        self.capacity = workers
        self._others = {*multiprocessing.active_children()}
        context = multiprocessing.get_context("spawn")  # a forked torch may hang
        super().__init__(workers, context, _start_process, (prepare, arguments))

    def submit(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
        """Queue a call of a function; starts a process if all are busy.

        Processes inherit that Ctrl-C is blocked, so that it cannot interrupt their imports either.
        """
        if sys.platform == "win32":  # which has no masks of signals
            return super().submit(function, *args, **kwargs)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(function, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def __exit__(self, *exc_info: object) -> None:
        """End all processes; results that have not been read are lost."""
        for process in {*multiprocessing.active_children()} - self._others:
            process.terminate()
        self.shutdown(cancel_futures=True)


def _start_process(prepare: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own one would be left over when this process is ended
    if prepare is not None:
        prepare(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class RayPool(Executor):
    """Executor of tasks on a Ray cluster; tasks of a node that dies run again on another one."""

    def __init__(
        self, ray: ModuleType, gpus: float, prepare: Callable[..., None] | None, *args: object
    ) -> None:
        resources = ray.cluster_resources()
        if gpus > resources.get("GPU", 0):
            raise ConfigError("this Ray cluster has no GPU: use --device cpu")
        on_gpus = resources.get("GPU", 0) / gpus if gpus else math.inf
        self.capacity = max(1, int(min(resources.get("CPU", 1), on_gpus)))
        self._ray = ray
        self._setup = ray.put((__version__, prepare, args))
        self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=5)(_run_task)
        self._running: set[object] = set()

    def submit(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
        """Queue a call of a function."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        task = self._task.remote([self._setup], function, args, kwargs)
        self._running.add(task)

        def finish(done: Future[Any]) -> None:
            self._running.discard(task)
            if (error := done.exception()) is None:
                future.set_result(done.result())
            else:  # raised by the function, or by Ray
                cause = getattr(error, "cause", None)
                future.set_exception(cause or BrokenExecutor(summarize_error(error)))

        task.future().add_done_callback(finish)
        return future

    def __exit__(self, *exc_info: object) -> None:
        """Cancel all tasks; results that have not been read are lost."""
        for task in list(self._running):
            self._ray.cancel(task, force=True)


def _run_task(setup: list[object], function: Callable[..., Any], args: Any, kwargs: Any) -> object:
    """Call a function in a process of the cluster; `setup` is in a list because Ray would unpack it."""
    _prepare_process(setup[0])
    return function(*args, **kwargs)


@lru_cache(maxsize=1)
def _prepare_process(setup: object) -> None:
    """Prepare a process for a pool, once; it may have worked for another one before."""
    version, prepare, arguments = import_optional("ray", "ray").get(setup)
    if version != __version__:
        raise ConfigError(f"a node of the Ray cluster has nsde-policy {__version__}: install {version} there")
    if prepare is not None:
        prepare(*arguments)
