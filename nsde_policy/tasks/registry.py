"""Tasks by name: a new one is one new file in this folder, or a package with an entry point.

    @register_task
    class MyTask(Task):
        name = "my_task"
        env_id = "my_package/MyEnv-v0"

A file may hold several tasks, such as `adroit-door` in adroit.py. Entry points of other packages belong to
the group `nsde_policy.tasks`.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsde_policy.errors import ConfigError, PluginError
from nsde_policy.registry import Registry

from .base import Reporting, Task, with_env_kwargs
from .environments import is_env_id

if TYPE_CHECKING:
    from nsde_policy.run_directory import RunRecord

HELPERS = ("adapter", "base", "detection", "drawing", "environments", "registry", "training_defaults")
"""Modules of this folder that are no tasks."""
TASKS: Registry[Task] = Registry("task", "nsde_policy.tasks", helpers=HELPERS)
_PLAIN_WORDS = re.compile(r"(?:[\w +-]|\.(?=\d))*")
"""Words and numbers: a dot is part of a number, not of a path or of a module's name."""


class GymTask(Task):
    """An environment without its own task: score is the return, success what its info says."""

    reporting = Reporting(score_note="Return: the sum of an episode's rewards.")

    def __init__(self, env_id: str) -> None:
        self.name = self.env_id = env_id


def register_task(cls: type[Task]) -> type[Task]:
    """Register a task under its `name`; decorates the class."""
    TASKS.add(cls.name, cls(), module=cls.__module__)
    return cls


def get_task_of_run(record: "RunRecord", env: str | None = None) -> Task:
    """Return the task that a run was trained for, or the task or environment `env`, see `get_task`.

    Only the run's own task gets the keyword arguments that the run records.
    """
    return get_recorded_task(record.task, record.env_kwargs) if env is None else get_task(env)


def get_recorded_task(name: str, env_kwargs: Mapping[str, object]) -> Task:
    """Return a task that a file names, with the keyword arguments of its environment in the file.

    A file must not name code: only tasks and environments that are registered here, and arguments without
    paths and names of modules. `module:Class` comes from the command line or from Python.
    """
    task = get_task(name)
    is_code = isinstance(task, GymTask) and ":" in name
    if is_code or not _is_plain(env_kwargs):
        arguments = f" --env-kwargs {shlex.quote(json.dumps(dict(env_kwargs)))}" if env_kwargs else ""
        problem = "is code" if is_code else "has arguments with paths or code"
        raise ConfigError(
            f"the environment {name!r:.80} that a file names {problem}, which a file alone must not run: if "
            f"you trust it, name it yourself with --env {name:.80}{arguments:.300}"
        )
    return with_env_kwargs(task, env_kwargs)


def _is_plain(value: object) -> bool:
    """Return whether all texts in a JSON value are plain words: no path, address or `module:name`."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not isinstance(value, str) or _PLAIN_WORDS.fullmatch(value) is not None


def get_task(name: str) -> Task:
    """Return a task by its name or its environment; any environment without a task becomes a `GymTask`."""
    if name in TASKS:
        return TASKS.get(name)
    tasks = TASKS.load_all().values()
    if (task := next((each for each in tasks if each.env_id == name), None)) is not None:
        return task
    if is_env_id(name):
        return GymTask(name)
    try:
        return TASKS.get(name)
    except PluginError as error:
        hint = "a Gymnasium id such as Pendulum-v1, or module:Class"
        raise PluginError(f"{error}; an environment needs its full name: {hint}") from None


@register_task
class NoTask(Task):
    """A robot of your own: everything is taken from the demonstrations."""

    name = "none"
