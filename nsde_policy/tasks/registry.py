"""Tasks by name: a new one is one new file in this folder, or a package with an entry point.

    @register_task
    class MyTask(Task):
        name = "my_task"
        env_id = "my_package/MyEnv-v0"

Entry points of other packages belong to the group `nsde_policy.tasks`.
"""

from typing import TYPE_CHECKING

from nsde_policy.registry import Registry
from nsde_policy.tasks.base import Task

if TYPE_CHECKING:
    from nsde_policy.run_directory import RunRecord

TASKS: Registry[Task] = Registry("task", "nsde_policy.tasks")


def register_task(cls: type[Task]) -> type[Task]:
    """Register a task under its `name`; decorates the class."""
    TASKS.add(cls.name, cls())
    return cls


def get_task_of_run(record: "RunRecord") -> Task:
    """Return the task that a run was trained for.

    Raises:
        PluginError: If the package that provides it is not installed.
    """
    return get_task(record.task, package=record.plugins.get("task"))


def get_task(name: str, *, package: str | None = None) -> Task:
    """Return a task by name; `package` is named in the error if it is not installed."""
    return TASKS.get(name, package=package)
