"""The interface of a task: environment, outcome of an episode, drawing, presets and symmetry."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from nsde_policy.config import Preset
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import DemoConfig, RunConfig

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np

    from nsde_policy.data import Mirror


@dataclass(frozen=True)
class Outcome:
    """How one episode ended."""

    success: bool
    score: float
    """The figure that an evaluation averages; `Task.score_title` names it."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further figures by name, averaged as well."""


class Task(abc.ABC):
    """What is known of a task beyond its demonstrations; register it with `register_task`."""

    name: ClassVar[str]
    env_id: ClassVar[str | None] = None
    """Gymnasium id of the environment that policies are evaluated in; None if there is none."""
    rate_hz: ClassVar[float | None] = None
    """Control periods per second; None if only the demonstrations can say."""
    score_title: ClassVar[str] = "return"
    """Title of `Outcome.score` in tables."""
    demos: DemoConfig = DemoConfig()
    """How its demonstrations are read."""

    def make_env(self, **kwargs: Any) -> "gym.Env[Any, Any]":
        """Make the environment; `kwargs` are passed to its constructor."""
        if self.env_id is None:
            raise ConfigError(f"the task {self.name!r} has no environment to play in")
        import gymnasium as gym

        from nsde_policy.envs import register_envs

        register_envs()
        try:
            return gym.make(self.env_id, **kwargs)
        except TypeError as error:
            raise ConfigError(f"{self.env_id} does not take these arguments: {kwargs} ({error})") from error

    def outcome(self, rewards: Sequence[float], infos: Sequence[Mapping[str, Any]]) -> Outcome:
        """Score an episode.

        Args:
            rewards: Reward after each action.
            infos: Gymnasium's info after the reset and after each action.

        Returns:
            By default the return, with success from `info["success"]` or `info["is_success"]`.
        """
        last = infos[-1]
        return Outcome(bool(last.get("success", last.get("is_success", False))), float(sum(rewards)))

    @property
    def mirror(self) -> "Mirror | None":
        """Mirror symmetry of the task, None if it has none."""
        return None

    def progress(self, info: Mapping[str, Any]) -> float | None:
        """Return the progress in [0, 1] shown under a picture, None if the task defines none."""
        return None

    def draw(self, obs: "np.ndarray", *, size: int) -> "np.ndarray | None":
        """Draw an observation, (size, size, 3) uint8; None if only the environment can."""
        return None

    def presets(self, method: str) -> Mapping[str, Preset]:
        """Return a method's presets; a task may override or add some."""
        return get_method(method).presets

    def preset(self, name: str, method: str = "neural_sde") -> RunConfig:
        """Return the settings of a run, by the name of a preset.

        Raises:
            ConfigError: If the method has no such preset.
        """
        presets = self.presets(method)
        if name not in presets:
            raise ConfigError(
                f"no preset {name!r} for task {self.name}, method {method}; available: {', '.join(presets)}"
            )
        return RunConfig.from_preset(presets[name], self.demos)
