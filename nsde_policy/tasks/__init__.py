"""Tasks: what is known of one beyond its demonstrations. A new task is one new file.

A task names the environment it is evaluated in, its symmetry, and settings that work for it; a robot of
your own needs none (`--task none`).
"""

import abc
import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import DEFAULT_METHOD, get_method
from nsde_policy.run_config import RunConfig

if TYPE_CHECKING:
    from nsde_policy.data import Mirror


class AbstractTask(abc.ABC):
    """What is known of a task."""

    name: str
    env_id: str | None
    """Gymnasium's name of the environment a policy is evaluated in; None where there is none."""
    rate_hz: float | None
    """Control periods per second; None where only the demonstrations can say."""

    @property
    @abc.abstractmethod
    def presets(self) -> Mapping[str, RunConfig]:
        """Settings of the Neural SDE by name: `default`, `paper`, `fast`."""

    @property
    @abc.abstractmethod
    def mirror(self) -> "Mirror | None":
        """The task's mirror symmetry, if it has one."""

    def preset(self, name: str, method: str = DEFAULT_METHOD) -> RunConfig:
        """The settings of that name, of a method: all methods learn from the same demonstrations."""
        presets = self.presets if method == DEFAULT_METHOD else self._presets_of(method)
        if name not in presets:
            raise ConfigError(
                f"no preset {name!r} for {self.name}, {method}; there are: {', '.join(presets)}"
            )
        return presets[name]

    def _presets_of(self, method: str) -> Mapping[str, RunConfig]:
        demos = replace(self.presets["default"].demos, final_action_weight=1.0)
        return {
            name: RunConfig(demos, preset.model, preset.train, preset.chunk)
            for name, preset in get_method(method).presets().items()
        }


def get_task(name: str) -> AbstractTask:
    """The task of that name."""
    from nsde_policy.tasks.none import GenericTask
    from nsde_policy.tasks.pusht import PushTTask

    tasks: dict[str, AbstractTask] = {task.name: task for task in (PushTTask(), GenericTask())}
    if name not in tasks:
        near = difflib.get_close_matches(name, tasks, n=1)
        hint = f"; perhaps you meant {near[0]!r}" if near else ""
        raise ConfigError(f"no task {name!r}; there are: {', '.join(tasks)}{hint}")
    return tasks[name]
