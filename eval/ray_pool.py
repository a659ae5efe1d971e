"""Tasks on a Ray cluster, with the interface of `WorkerPool`; Ray is imported when a pool is opened."""

import logging
import os
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from types import ModuleType
from typing import Any

from nsde_policy import __version__
from nsde_policy.errors import ConfigError, import_optional, summarize_error
from nsde_policy.eval.workers import WorkerPool

LOCAL = "local"
"""Address that starts a Ray on this machine."""
TASK_RETRIES = 5
"""How often a task is run again after its node or its process has died."""
CONNECT_S = 20.0
"""Timeout of the first connection; Ray itself tries for minutes, then ends the process."""


def open_pool(
    workers: int,
    prepare: Callable[..., None] | None = None,
    *arguments: object,
    ray: str | None = None,
    gpus: float = 0.0,
) -> "WorkerPool | RayPool":
    """Open a pool of processes on this machine, or of tasks on the Ray cluster at an address.

    Args:
        workers: Number of processes; a cluster other than "local" runs a task on each of its CPUs.
        prepare: Function of a module that each process calls first, with `arguments`.
        *arguments: Sent to each process once.
        ray: "local" starts Ray on this machine, "auto", "HOST:6379" or "ray://HOST:10001" connects.
        gpus: Share of a GPU that each task asks Ray for.
    """
    if ray is None:
        return WorkerPool(workers, prepare, *arguments)
    return RayPool(connect(ray, workers), prepare, *arguments, gpus=gpus)


def connect(address: str, workers: int) -> ModuleType:
    """Connect to a Ray cluster until this process ends, or keep the connection that it has already.

    Raises:
        MissingDependencyError: If Ray is not installed.
        ConfigError: If there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_optional("ray", "ray")
    if ray.is_initialized():
        return ray
    settings: dict[str, object] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        settings |= {"num_cpus": workers, "include_dashboard": False}
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.removeprefix("ray://"), int(port)), CONNECT_S).close()
        ray.init(address, **settings)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster at {address}: {summarize_error(error)}; expected --ray local, auto, HOST:6379 "
            "or ray://HOST:10001. `ray start --head` starts a cluster"
        ) from error
    return ray


class RayPool:
    """Executor of tasks on a Ray cluster; tasks of a node that dies run again on another one.

    Each process of the cluster calls `prepare` with `arguments` before its first task.
    """

    def __init__(
        self, ray: ModuleType, prepare: Callable[..., None] | None, *arguments: object, gpus: float = 0.0
    ) -> None:
        found = ray.cluster_resources()
        if gpus > found.get("GPU", 0):
            raise ConfigError("this Ray cluster has no GPU: use --device cpu")
        self.capacity = max(1, int(found.get("CPU", 1)))
        self._ray = ray
        self._name = secrets.token_hex(8)
        self._setup = ray.put((__version__, prepare, arguments))
        self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=TASK_RETRIES)(_run_task)
        self._running: set[object] = set()

    def submit(self, function: Callable[..., Any], /, *args: object) -> Future[Any]:
        """Queue a call of a function."""
        future: Future[Any] = Future()
        task = self._task.remote(self._name, [self._setup], function, args)
        self._running.add(task)

        def finish(done: Future[Any]) -> None:
            self._running.discard(task)
            if (error := done.exception()) is None:
                future.set_result(done.result())
            elif (cause := getattr(error, "cause", None)) is not None:  # the task's own error
                future.set_exception(cause)
            else:
                future.set_exception(BrokenExecutor(summarize_error(error)))

        task.future().add_done_callback(finish)
        return future

    def __enter__(self) -> "RayPool":
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Cancel all tasks; results that have not been read are lost."""
        for task in list(self._running):
            self._ray.cancel(task, force=True)


_prepared = ""


def _run_task(pool: str, setup: list[Any], function: Callable[..., Any], args: tuple[object, ...]) -> object:
    """Call a function in a process of the cluster, which may have worked for another pool before."""
    global _prepared
    if _prepared != pool:
        version, prepare, arguments = import_optional("ray", "ray").get(setup[0])
        if version != __version__:
            raise ConfigError(
                f"a node of the Ray cluster has nsde-policy {__version__}: install {version} there"
            )
        if prepare is not None:
            prepare(*arguments)
        _prepared = pool
    return function(*args)
