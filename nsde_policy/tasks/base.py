"""The interface of a task: environment, outcome of an episode, drawing, presets and symmetry."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from nsde_policy.assets import USUAL_OBSERVATIONS
from nsde_policy.config import EncoderConfig, Preset
from nsde_policy.errors import ConfigError, EnvError
from nsde_policy.methods.registry import METHODS, get_method
from nsde_policy.run_config import DemoConfig, RunConfig

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np

    from nsde_policy.data import Mirror
    from nsde_policy.data.download import PublicDemos
    from nsde_policy.data.statistics import DemoStatistics
    from nsde_policy.tasks.live_table import LiveTable

AUTO_PRESET = "auto"
"""Preset that is chosen by statistics of the demonstrations, for any method."""


@dataclass(frozen=True)
class Outcome:
    """How one episode ended."""

    success: bool | None
    """None if the environment does not say."""
    score: float
    """The figure that an evaluation averages; `Task.score_name` names it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures by name, averaged as well."""
    success_step: int | None = None
    """Number of actions before the first success; None for all, or without success."""


@dataclass(frozen=True)
class Forecast:
    """Futures that a policy samples from one moment on, for drawings."""

    actions: np.ndarray
    """(steps, n, act_dim)."""
    obs: np.ndarray | None = None
    """Predicted observations, the present first, (steps + 1, n, obs_dim); None from methods without them."""
    std: np.ndarray | None = None
    """Standard deviation of the next observation along each future, (steps, n, obs_dim), if asked for."""

    def skip(self, periods: int) -> Forecast:
        """Return what is still ahead after some control periods."""
        return Forecast(self.actions[periods:], None if self.obs is None else self.obs[periods:])


@dataclass(frozen=True)
class ObservationChoice:
    """A set of observations that a policy can be trained on, other than the task's usual one."""

    demos: Mapping[str, Any]
    """Fields of `DemoConfig` that differ from those of the task."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments with which the environment gives these observations."""
    preset: str = "default"
    """Preset that `train` uses, of methods that have it."""
    recorded_with: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments with which the environment gives them beside the usual observations, to record."""
    encoders: Mapping[str, EncoderConfig] = field(default_factory=dict)
    """Settings of the encoder by the name of the preset, for presets without any."""


@dataclass(frozen=True)
class SuiteMember:
    """A method with a preset, as trained and played by `compare --suite`."""

    method: str
    preset: str = "default"
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further ways to sample the trained model: changes to its sampling, by what is added to its name."""


@dataclass(frozen=True)
class Scene:
    """What a web page needs to draw recorded episodes of a task."""

    script: str
    """JavaScript that defines the class `Scene`, made by `new Scene(geometry)`; it may call `envs/canvas.js`.

    It extends `BaseScene` of that file. The live page draws with pixels of the page and calls
    `drawStill(context, colours)` for what does not move; a scene with `outline` has a block that can be
    dragged. In a report, a frame is an array of the recorded values. Its page uses these members:

    - `side`: width and height of a drawing, in the units that `drawFrame` draws in.
    - `colours`: names of the CSS variables of `eval/report/page.css` that `drawFrame` takes from `palette`.
    - `mixFrames(a, b, share)`: return the frame between two, for `share` from 0 to 1.
    - `drawFrame(context, frame, {trail, start, colour, palette, width})`: draw a frame on a 2D canvas.
      `trail` holds the frames up to it, `start` is the first of the episode, `colour` that of the policy,
      `palette` maps names to colours, and lines are `width` times as wide as usual.
    """
    geometry: Mapping[str, Any]
    """Sizes and shapes, by the names that the page's scripts use."""
    scales: tuple[int, ...]
    """Steps per unit of each recorded value, which is stored in 16 bits: observations, then progress."""


class Task(abc.ABC):
    """What is known of a task beyond its demonstrations; register it with `register_task`."""

    name: str
    title: ClassVar[str] = ""
    """Title in reports; by default the name."""
    env_id: str | None = None
    """Environment that policies are evaluated in, a Gymnasium id or `module:Class`; None if there is none."""
    env_kwargs: Mapping[str, Any] = MappingProxyType({})
    """Default keyword arguments of the environment; evaluations record them."""
    rate_hz: ClassVar[float | None] = None
    """Control periods per second; None if only the demonstrations can say."""
    default_preset: str = AUTO_PRESET
    """Preset that `train` uses; `auto` chooses settings by statistics of the demonstrations."""
    score_name: ClassVar[str] = "return"
    """Name of `Outcome.score` in results, such as "max_reward"."""
    progress_name: ClassVar[str] = "progress"
    """Name of `progress` in results, such as "coverage"."""
    success_progress: ClassVar[float | None] = None
    """Progress above which an episode is a success, marked in pictures; None if progress does not decide."""
    success_name: ClassVar[str] = "success"
    """Title of the share of successful episodes in tables."""
    score_note: ClassVar[str] = ""
    """What score and success mean, for the notes below a table."""
    modes: ClassVar[int] = 0
    """Number of different ways to succeed, which the environment numbers from 0 in `info["mode"]`; 0 if the
    task tells none apart."""
    path_of: ClassVar[tuple[int, int] | None] = None
    """Columns of the state (see `read_state`) that are drawn as the path of an episode, horizontal first."""
    demos: DemoConfig = DemoConfig()
    """How its demonstrations are read."""
    observations: Mapping[str, ObservationChoice] = MappingProxyType({})
    """Other observations by the name that `train --obs` gives them, such as "pixels"."""
    encoders: Mapping[str, EncoderConfig] = MappingProxyType({})
    """Settings of the encoder by the name of the preset, see `ObservationChoice`."""

    def make_env(self, **kwargs: Any) -> gym.Env[Any, Any]:
        """Make the environment; `kwargs` are passed to its constructor and override `env_kwargs`."""
        if self.env_id is None:
            raise ConfigError(
                f"the task {self.name!r} has no environment to play in: give one with --env, or score "
                "recorded episodes with --demos STORE"
            )
        from nsde_policy.tasks.gym import make_gym_env

        return make_gym_env(self.env_id, {**self.env_kwargs, **kwargs})

    def with_env_kwargs(self, env_kwargs: Mapping[str, Any]) -> Self:
        """Return the task with some keyword arguments of its environment changed."""
        if not env_kwargs:
            return self
        changed = copy.copy(self)
        changed.env_kwargs = {**self.env_kwargs, **env_kwargs}
        return changed

    def with_observations(self, name: str) -> Self:
        """Return the task with another set of observations; "state" for the usual one.

        Raises:
            ConfigError: If the task has no such set.
        """
        if name == USUAL_OBSERVATIONS:
            return self
        if name not in self.observations:
            available = ", ".join((USUAL_OBSERVATIONS, *self.observations))
            raise ConfigError(
                f"the task {self.name!r} has no observations {name!r}; available: {available}. To train "
                "with cameras of your own robot, name their arrays: nsde-policy train --images top wrist"
            )
        choice = self.observations[name]
        changed = copy.copy(self)
        changed.demos = DemoConfig(**{**vars(self.demos), **choice.demos})
        changed.env_kwargs = {**self.env_kwargs, **choice.env_kwargs}
        changed.default_preset, changed.encoders = choice.preset, choice.encoders
        return changed

    def without_observations(self, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments of the environment, except those that choose what is observed.

        Policies with different observations are compared on the same starts, and trained on one store.
        """
        choices = self.observations.values()
        chosen = {name for choice in choices for name in (*choice.env_kwargs, *choice.recorded_with)}
        return {name: value for name, value in env_kwargs.items() if name not in chosen}

    def outcome(self, rewards: Sequence[float], infos: Sequence[Mapping[str, Any]]) -> Outcome:
        """Score an episode.

        Args:
            rewards: Reward after each action.
            infos: Gymnasium's info after the reset and after each action.

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
        if not isinstance(number, bool | int | float) or not math.isfinite(number):
            raise EnvError(
                f"environment {self.env_id or self.name}: info[{name!r}] is {type(value).__name__} "
                f"{' '.join(repr(value).split()):.60}, expected True or False"
            )
        return bool(number)

    def read_mode(self, info: Mapping[str, Any]) -> int | None:
        """Return the mode of an episode, given its last info: -1 if unknown, None if the task has no modes.

        Raises:
            EnvError: If `info["mode"]` is not a whole number from -1 to `modes` - 1.
        """
        if not self.modes:
            return None
        value = info.get("mode", -1)
        number = value.item() if getattr(value, "size", None) == 1 else value
        if isinstance(number, bool) or not isinstance(number, int) or not -1 <= number < self.modes:
            found = f"{' '.join(repr(value).split()):.60}"
            raise EnvError(
                f"environment {self.env_id or self.name}: info['mode'] is {found}, "
                f"expected a whole number from 0 to {self.modes - 1}, or -1 if the mode is unknown"
            )
        return number

    @property
    def obstacles(self) -> Sequence[tuple[float, float, float]]:
        """Discs (horizontal, vertical, radius) below a picture of paths, in the units of the state."""
        return ()

    @property
    def mirror(self) -> Mirror | None:
        """Mirror symmetry of the task, None if it has none."""
        return None

    @property
    def public_demos(self) -> PublicDemos | None:
        """Demonstrations that `nsde-policy data download` fetches, None if there are none."""
        return None

    def progress(self, info: Mapping[str, Any]) -> float | None:
        """Return the progress in [0, 1] shown under a picture, None if the task defines none."""
        return None

    def read_state(self, obs: np.ndarray, info: Mapping[str, Any]) -> np.ndarray:
        """Return the state that is drawn, replayed and stored, given what a policy observes.

        By default it is the observation. A task whose policies may observe less, such as camera frames, takes
        the rest from Gymnasium's info.
        """
        return obs

    def draw(
        self,
        obs: np.ndarray,
        *,
        size: int,
        forecast: Forecast | None = None,
        past: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw an observation, (size, size, 3) uint8; a task that overrides this can be rendered.

        Args:
            obs: What to draw, (obs_dim,).
            size: Side of the picture in pixels.
            forecast: Sampled futures to draw over it.
            past: Earlier observations to draw as a trail, (steps, obs_dim), oldest first.
        """
        raise ConfigError(f"the task {self.name!r} cannot be drawn: define {type(self).__name__}.draw")

    @property
    def can_draw(self) -> bool:
        """Whether the task overrides `draw`."""
        return type(self).draw is not Task.draw

    def scene(self) -> Scene | None:
        """Return what a web page needs to draw episodes, None if it cannot draw them."""
        return None

    def live_table(self) -> LiveTable:
        """Make a table for `play` and `collect`; a task that overrides this, and `scene`, has a live page.

        Of `env_kwargs` only those that choose starts count.
        """
        raise ConfigError(
            f"{self.name} has no live page: play episodes with eval --render, generate some with collect "
            "--policy RUN or --policy module:Class"
        )

    def suite(self) -> Sequence[SuiteMember]:
        """Return the methods that are compared on this task; by default all, with `default_preset`."""
        return [SuiteMember(method, self.default_preset) for method in METHODS.list_usable()]

    def presets(self, method: str) -> Mapping[str, Preset]:
        """Return a method's presets; a task may override or add some."""
        return get_method(method).presets

    def preset(
        self, name: str, method: str = "neural_sde", *, statistics: DemoStatistics | None = None
    ) -> RunConfig:
        """Return the settings of a run, by the name of a preset; `auto` needs statistics of demonstrations.

        Raises:
            ConfigError: If the method has no such preset.
        """
        presets = self.presets(method)
        if name == AUTO_PRESET and statistics is not None:
            return RunConfig.from_preset(get_method(method).auto_preset(statistics), self.demos)
        if name not in presets:
            raise ConfigError(
                f"no preset {name!r} for task {self.name}, method {method}; available: {', '.join(presets)}, "
                f"and {AUTO_PRESET} for given demonstrations"
            )
        preset = presets[name]
        return RunConfig.from_preset(
            replace(preset, encoder=preset.encoder or self.encoders.get(name)), self.demos
        )
