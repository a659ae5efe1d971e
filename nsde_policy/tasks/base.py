"""The interface of a task: its environment, the outcome of an episode, and the parts that other rooms use."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from nsde_policy.assets import USUAL_OBSERVATIONS
from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig, RunConfig

from .drawing import Drawing
from .environments import AnyEnv, make_gym_env, run_env_code
from .training_defaults import AUTO_PRESET, TrainingDefaults

if TYPE_CHECKING:
    from nsde_policy.data.statistics import DemoStatistics
    from nsde_policy.envs.live import LiveTable

Info: TypeAlias = Mapping[str, object]
"""Gymnasium's info of a reset or a step."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of an episode: success, score and further figures."""

    success: bool | None
    """None if the environment does not say."""
    score: float
    """The figure that an evaluation averages; `Task.score_name` names it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures by name, averaged as well."""
    success_step: int | None = None
    """Number of actions before the first success; None for all, or without success."""


@dataclass(frozen=True)
class Reporting:
    """Words for the tables of reports and comparisons, and the number of modes."""

    title: str = ""
    """Title in reports; by default the name of the task."""
    success_name: str = "success"
    """Title of the share of successful episodes in tables."""
    score_note: str = ""
    """Definition of score and success, for the notes below a table."""
    modes: int = 0
    """Number of different ways to succeed, which the environment numbers from 0 in `info["mode"]`; 0 if the
    task tells none apart."""


class Task(abc.ABC):
    """A task: all that is known beyond its demonstrations; register it with `register_task`.

    Only `name` is required, and `env_id` lets policies be evaluated. What reports, pictures and training need
    is in `reporting`, `drawing` and `training`.
    """

    name: str
    env_id: str | None = None
    """Environment that policies are evaluated in, a Gymnasium id or `module:Class`; None if there is none."""
    env_kwargs: Mapping[str, object] = MappingProxyType({})
    """Default keyword arguments of the environment; evaluations record them."""
    rate_hz: ClassVar[float | None] = None
    """Control periods per second; None if only the demonstrations can say."""
    score_name: ClassVar[str] = "return"
    """Name of `Outcome.score` in results, such as "max_reward"."""
    reporting: Reporting = Reporting()
    """Words for tables, and the number of modes."""
    drawing: Drawing = Drawing()
    """Pictures and the scene of a web page."""
    training: TrainingDefaults = TrainingDefaults()
    """Settings of demonstrations, symmetry and presets."""

    def make_env(self, **kwargs: object) -> AnyEnv:
        """Make the environment; `kwargs` are passed to its constructor and override `env_kwargs`."""
        if self.env_id is None:
            raise ConfigError(
                "your own robot has no environment: give one with --env, or score recorded episodes with "
                "`nsde-policy score RUN --demos STORE`"
            )
        return make_gym_env(self.env_id, {**self.env_kwargs, **kwargs})

    def outcome(self, rewards: Sequence[float], infos: Sequence[Info]) -> Outcome:
        """Score an episode by the reward after each action, and the info after the reset and each action.

        Returns:
            By default the return, with success if `info["success"]` or `info["is_success"]` is true after any
            action, and unknown if no info holds either.

        Raises:
            EnvError: If one of them is neither a number nor an array of one.
        """
        said = [
            (step, self._read_success(name, info[name]))
            for step, info in enumerate(infos)
            for name in ("success", "is_success")
            if info.get(name) is not None
        ]
        first = next((step for step, success in said if success), None)
        return Outcome(first is not None if said else None, float(sum(rewards)), success_step=first)

    def _read_success(self, name: str, value: Any) -> bool:
        number = value.item() if getattr(value, "size", None) == 1 else value
        if not isinstance(number, bool | int | float) or math.isnan(number):
            raise EnvError(
                f"environment {self.env_id or self.name}: info[{name!r}] is {type(value).__name__} "
                f"{' '.join(repr(value).split()):.60}, expected True or False"
            )
        return bool(number)

    def live_table(self) -> LiveTable:
        """Make a table for `play` and `collect`; a task with this and `drawing.scene` has a live page.

        Of `env_kwargs` only those that choose starts count.
        """
        raise ConfigError(
            f"{self.name} has no live page: see episodes with eval --render, or recorded ones with score "
            "--report; generate some with collect --policy RUN or --policy module:Class"
        )

    def preset(
        self, name: str, method: str = "neural_sde", *, statistics: DemoStatistics | None = None
    ) -> RunConfig:
        """Return the settings of a preset by its name; with statistics, `auto` chooses them."""
        defaults = self.training
        presets = defaults.presets(method)
        if statistics is not None:
            preset = defaults.adapt(get_method(method).auto_preset(statistics))
        elif name in presets:
            preset = presets[name]
        else:
            raise ConfigError(
                f"{method} has no preset {name!r}; available: {', '.join(presets)}, "
                f"and {AUTO_PRESET} for given demonstrations; a run needs its path, such as runs/{name}"
            )
        encoder = preset.encoder or defaults.encoders.get(name)
        return RunConfig.from_preset(replace(preset, encoder=encoder), defaults.demos)


def open_env(task: Task, env_kwargs: Mapping[str, object] | None = None) -> AnyEnv:
    """Make the environment of a task; raise `EnvError` whatever its code raises."""
    with run_env_code(f"environment {task.env_id or task.name}: make_env"):
        return task.make_env(**(env_kwargs or {}))


def find_rate(task: Task, env: AnyEnv) -> float | None:
    """Return the control periods per second of an environment, None if unknown.

    They are `task.rate_hz`, else 1 / `env.unwrapped.dt`, else `env.metadata["render_fps"]`.
    """
    if task.rate_hz:
        return task.rate_hz
    with run_env_code(f"environment {task.env_id or task.name}: its rate (dt, metadata)"):
        if period := float(getattr(env.unwrapped, "dt", None) or 0.0):
            return 1.0 / period
        return float(env.metadata.get("render_fps") or 0.0) or None


def read_number(info: Info, name: str) -> float:
    """Return a number of an info, such as a coverage."""
    value: Any = info[name]
    return float(value)


def read_episode_mode(task: Task, info: Info) -> int | None:
    """Return the mode of an episode, given its last info: -1 if unknown, None if the task has no modes."""
    modes = task.reporting.modes
    if not modes:
        return None
    value: Any = info.get("mode", -1)
    if value not in range(-1, modes):
        raise EnvError(
            f"environment {task.env_id or task.name}: info['mode'] is {value!r:.60}, expected a whole number "
            f"from 0 to {modes - 1}, or -1 if the mode is unknown"
        )
    return int(value)


AnyTask = TypeVar("AnyTask", bound=Task)


def with_env_kwargs(task: AnyTask, env_kwargs: Mapping[str, object]) -> AnyTask:
    """Return a task with some keyword arguments of its environment changed."""
    if not env_kwargs:
        return task
    changed = copy.copy(task)
    changed.env_kwargs = {**task.env_kwargs, **env_kwargs}
    return changed


def with_observations(task: AnyTask, name: str) -> AnyTask:
    """Return a task with another set of observations; "state" for the usual one."""
    if name == USUAL_OBSERVATIONS:
        return task
    choices = task.training.observations
    if name not in choices:
        available = ", ".join((USUAL_OBSERVATIONS, *choices))
        raise ConfigError(
            f"the task {task.name!r} has no observations {name!r}; available: {available}. To train "
            "with cameras of your own robot, name their arrays: nsde-policy train --images top wrist"
        )
    choice = choices[name]
    training = copy.copy(task.training)
    training.demos = DemoConfig(**{**vars(training.demos), **choice.demos})
    training.default_preset = choice.preset
    training.encoders = choice.encoders
    changed = with_env_kwargs(copy.copy(task), choice.env_kwargs)
    changed.training = training
    return changed
