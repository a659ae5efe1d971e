"""The interface of a task's live table, which `play` and `collect` show on a web page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from nsde_policy.envs.page import PageMap


class LiveTable(Protocol):
    """An episode that the live page shows and that a user can interfere with; see `Task.live_table`.

    Positions are in units of the environment unless they are said to be on the page, whose table has
    512 × 512 pixels, y down. States are those of `Drawing.read_state`.
    """

    sizes: Collection[tuple[int, int, int]]
    """Numbers of measured values, cameras and actions of the policies that can play."""
    page: PageMap
    """Maps positions to the page."""
    unit: tuple[str, float]
    """Unit in which the page states lengths, and how many of them are one pixel."""
    agent: slice
    """Columns of an observation with the position of the agent."""
    moved: slice
    """Columns of an observation that change if the agent is elsewhere."""
    moves_action: bool
    """Whether actions are positions, which change with the agent's."""
    longest_s: float
    """Time limit of an episode recorded by hand, seconds."""
    texts: Mapping[str, str]
    """Words of the page: agent, goal, progress, threshold, tagline, record, failed, help."""

    def start(self, **arguments: Any) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Reset the environment with these arguments; return state and info."""
        ...

    def advance(
        self, action: Sequence[float], dragged: Sequence[float] | None = None
    ) -> tuple[list[np.ndarray], float, bool, Mapping[str, Any]]:
        """Run one control period.

        Args:
            action: Action of the environment.
            dragged: Pose to which a user drags the block, if the task has one.

        Returns:
            States to draw, the last of which is the state after the period, reward, whether the episode is
            over, and info.
        """
        ...

    def restart_arguments(self, state: np.ndarray) -> dict[str, Any]:
        """Return arguments of a reset to a state, as far as that is possible."""
        ...

    def command_point(self, state: np.ndarray, point: Sequence[float]) -> tuple[float, ...]:
        """Return the action that brings the agent closest to a position."""
        ...

    def clip(self, action: Sequence[float]) -> tuple[float, ...]:
        """Return an action within its limits."""
        ...

    def find_targets(self, state: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the positions (n, 2) that actions (n, act_dim) command one after the other from a state."""
        ...

    def find_target(self, state: np.ndarray, last_action: np.ndarray) -> np.ndarray:
        """Return the position (2,) that is commanded now, given the action that led to a state."""
        ...

    def describe(self, state: np.ndarray) -> list[float]:
        """Return a frame of the task's scene on the page: agent x, y, and the rest of what moves."""
        ...


class CameraTable(LiveTable, Protocol):
    """A table that policies can observe with a camera."""

    def measure(self, state: np.ndarray) -> np.ndarray:
        """Return the values that a policy with a camera observes beside its picture."""
        ...

    def draw_camera(self, state: np.ndarray, width: int, height: int) -> np.ndarray:
        """Draw what the camera sees, (height, width, 3) uint8."""
        ...
