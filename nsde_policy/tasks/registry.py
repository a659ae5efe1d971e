"""Tasks by name: a new one is one new file in this folder, or a package with an entry point.

    @register_task
    class MyTask(Task):
        name = "my_task"
        env_id = "my_package/MyEnv-v0"

A file with several tasks gives them names that start with its own, `adroit-door` in adroit.py.

Entry points of other packages belong to the group `nsde_policy.tasks`.
"""

from typing import TYPE_CHECKING

from nsde_policy.errors import PluginError
from nsde_policy.registry import Registry
from nsde_policy.tasks.base import Task
from nsde_policy.tasks.gym import GymTask, is_env_id, suggest_env_id

if TYPE_CHECKING:
    from nsde_policy.run_directory import RunRecord

TASKS: Registry[Task] = Registry("task", "nsde_policy.tasks")


def register_task(cls: type[Task]) -> type[Task]:
    """Register a task under its `name`; decorates the class."""
    TASKS.add(cls.name, cls())
    return cls


def get_task_of_run(record: "RunRecord", env: str | None = None) -> Task:
    """Return the task that a run is played in.

    Args:
        record: What the run says of itself.
        env: Task or environment, see `get_task`, with its default keyword arguments; None for the one that
            the run was trained for, with the run's keyword arguments.

    Raises:
        PluginError: If the package that provides it is not installed.
    """
    package = record.plugins.get("task")
    if env is not None:
        return get_task(env, package=package if env == record.task else None)
    return get_task(record.task, package=package).with_env_kwargs(record.env_kwargs)


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
