"""Tasks by name: a new one is one new file in this folder, or a package with an entry point.

    @register_task
    class MyTask(Task):
        name = "my_task"
        env_id = "my_package/MyEnv-v0"

A file with several tasks gives them names that start with its own, `adroit-door` in adroit.py.

Entry points of other packages belong to the group `nsde_policy.tasks`.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsde_policy.errors import ConfigError, PluginError
from nsde_policy.registry import Registry
from nsde_policy.tasks.base import Task
from nsde_policy.tasks.gym import GymTask, is_env_id, suggest_env_id

if TYPE_CHECKING:
    from nsde_policy.run_directory import RunRecord

TASKS: Registry[Task] = Registry("task", "nsde_policy.tasks")
_PLAIN_WORDS = re.compile(r"[\w .+-]*")


def register_task(cls: type[Task]) -> type[Task]:
    """Register a task under its `name`; decorates the class."""
    task = cls()
    if not isinstance(task.env_id, str | None):
        raise ConfigError(f"env_id of the task {cls.name!r} is {task.env_id!r:.60}, expected text or None")
    TASKS.add(cls.name, task)
    return cls


def get_task_of_run(record: "RunRecord", env: str | None = None) -> Task:
    """Return the task that a run is played in.

    Args:
        record: What the run says of itself.
        env: Task or environment, see `get_task`, with its default keyword arguments; None for the one that
            the run was trained for, with the run's keyword arguments.

    Raises:
        ConfigError: If the run names code of an environment, see `get_recorded_task`.
        PluginError: If the package that provides it is not installed.
    """
    package = record.plugins.get("task")
    if env is not None:
        return get_task(env, package=package if env == record.task else None)
    return get_recorded_task(record.task, record.env_kwargs, package=package)


def get_recorded_task(name: str, env_kwargs: Mapping[str, Any], *, package: str | None = None) -> Task:
    """Return a task that a file names, with the keyword arguments of its environment in the file.

    A file must not name code: only tasks and environments that are registered here, and arguments without
    paths and names of modules. `module:Class` comes from the command line or from Python.

    Raises:
        ConfigError: If the file names code, with the flags that allow it.
        PluginError: If it is neither a task nor the name of an environment.
    """
    task = get_task(name, package=package)
    is_code = isinstance(task, GymTask) and ":" in name
    if is_code or not _is_plain(env_kwargs):
        arguments = f" --env-kwargs {shlex.quote(json.dumps(dict(env_kwargs)))}" if env_kwargs else ""
        found = "is code" if is_code else "has arguments with paths or code"
        raise ConfigError(
            f"the environment {name!r} that a file names {found}, which a file alone must not run: if you "
            f"trust it, name it yourself with --env {name}{arguments:.300}"
        )
    return task.with_env_kwargs(env_kwargs)


def _is_plain(value: Any) -> bool:
    """Return whether all texts in a JSON value are plain words: no path, address or `module:name`."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, str) or _PLAIN_WORDS.fullmatch(value) is not None


def get_task(name: str, *, package: str | None = None) -> Task:
    """Return a task by its name or by its environment; any environment without a task becomes a `GymTask`.

    Args:
        name: Name of a registered task, a Gymnasium id, or `module:Class`.
        package: Distribution that provided the task when a run was made, named in the error.

    Raises:
        PluginError: If it is neither a task nor the name of an environment.
    """
    if package is None and name not in TASKS:
        if (task := next((each for each in TASKS.load_all() if each.env_id == name), None)) is not None:
            return task
        if is_env_id(name) and not TASKS.list_group(name.partition(":")[0]):
            return GymTask(name)
    try:
        return TASKS.get(name, package=package)
    except PluginError as error:
        if package or name in TASKS or TASKS.list_group(name.partition(":")[0]):
            raise
        near = suggest_env_id(name)
        hint = f"perhaps {near}" if near else "a Gymnasium id such as Pendulum-v1, or module:Class"
        raise PluginError(f"{error}; an environment needs its full name: {hint}") from None
