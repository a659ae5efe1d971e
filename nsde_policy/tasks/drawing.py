"""Drawing of a task: pictures of its states, and the scene of a web page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from nsde_policy.envs.scene import Scene


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


class Drawing:
    """Pictures of a task; every member is optional."""

    progress_name: str = "progress"
    """Name of `progress` in results, such as "coverage"."""
    success_progress: float | None = None
    """Progress above which an episode is a success, marked in pictures; None if progress does not decide."""

    def progress(self, info: Mapping[str, object]) -> float | None:
        """Return the progress in [0, 1] shown under a picture, None if the task defines none."""
        return None

    def read_state(self, obs: np.ndarray, info: Mapping[str, object]) -> np.ndarray:
        """Return the state that is drawn, replayed and stored, given what a policy observes.

        By default it is the observation. A task whose policies may observe less, such as camera frames, takes
        the rest from Gymnasium's info.
        """
        return obs

    def draw(self, obs: np.ndarray, *, size: int, forecast: Forecast | None = None) -> np.ndarray:
        """Draw an observation and sampled futures, (size, size, 3) uint8; override it to render a task."""
        raise ConfigError("this task cannot be drawn: give it a Drawing that overrides draw")

    @property
    def can_draw(self) -> bool:
        """Return whether `draw` is overridden."""
        return type(self).draw is not Drawing.draw

    def scene(self) -> Scene | None:
        """Return what a web page needs to draw episodes, None if it cannot draw them."""
        return None
