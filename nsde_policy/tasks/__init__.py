"""Tasks: what is known of one beyond its demonstrations. A new task is one new file.

A task names the environment it is evaluated in, its symmetry, and settings that work for it; a robot of
your own needs none (`--task none`).
"""

import abc
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsde_policy.errors import ConfigError
from nsde_policy.run_config import RunConfig

if TYPE_CHECKING:
    from nsde_policy.data import Mirror


class AbstractTask(abc.ABC):
    """What is known of a task."""

    name: str
    env_id: str | None
    """Gymnasium's name of the environment a policy is evaluated in; None where there is none."""

    @property
    @abc.abstractmethod
    def presets(self) -> Mapping[str, RunConfig]:
        """Settings by name: `default`, `paper`, `fast`."""

    @property
    @abc.abstractmethod
    def mirror(self) -> "Mirror | None":
        """The task's mirror symmetry, if it has one."""

    def preset(self, name: str) -> RunConfig:
        """The settings of that name."""
        if name not in self.presets:
            raise ConfigError(f"no preset {name!r} for {self.name}; there are: {', '.join(self.presets)}")
        return self.presets[name]


def get_task(name: str) -> AbstractTask:
    """The task of that name."""
    from nsde_policy.tasks.generic import GenericTask
    from nsde_policy.tasks.pusht import PushTTask

    tasks: dict[str, AbstractTask] = {task.name: task for task in (PushTTask(), GenericTask())}
    if name not in tasks:
        near = difflib.get_close_matches(name, tasks, n=1)
        hint = f"; perhaps you meant {near[0]!r}" if near else ""
        raise ConfigError(f"no task {name!r}; there are: {', '.join(tasks)}{hint}")
    return tasks[name]
