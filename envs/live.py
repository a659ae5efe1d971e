"""Tables of the live page: episodes that a policy or a user plays, drawn on 512 × 512 pixels, y down."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from nsde_policy.errors import EnvError

PAGE_SIDE = 512.0
"""Side of a table on the page and in pictures, pixels."""


@dataclass(frozen=True)
class PageMap:
    """Maps positions of an environment to pixels of the page and back.

    Pixel (0, 0) is the position `origin`. `scale` holds pixels per unit of x and y, negative if y points up.
    """

    scale: tuple[float, float] = (1.0, 1.0)
    origin: tuple[float, float] = (0.0, 0.0)

    def to_page(self, points: np.ndarray) -> np.ndarray:
        """Return positions (..., 2) in pixels; differences of positions only need the scale."""
        pixels: np.ndarray = (points - self.origin) * self.scale
        return pixels

    def from_page(self, points: np.ndarray) -> np.ndarray:
        """Return pixels (..., 2) as positions of the environment."""
        positions: np.ndarray = points / self.scale + self.origin
        return positions


class TableStep(NamedTuple):
    """Result of one control period."""

    states: list[np.ndarray]
    """States to draw; the last one is the state after the period."""
    reward: float
    is_over: bool
    info: Mapping[str, object]


class LiveTable(abc.ABC):
    """An episode that the live page shows and that a user can interfere with; see `Task.live_table`.

    Positions are in units of the environment unless they are said to be on the page. States are those of
    `Drawing.read_state`.
    """

    page: ClassVar[PageMap] = PageMap()
    """Maps positions to the page."""
    unit: ClassVar[tuple[str, float]] = ("px", 1.0)
    """Unit in which the page states lengths, and how many of them are one pixel."""
    agent: ClassVar[slice]
    """Columns of an observation with the position of the agent."""
    limits: ClassVar[tuple[float, float]]
    """Smallest and largest value of an action."""
    longest_s: ClassVar[float]
    """Time limit of an episode recorded by hand, seconds."""
    limit_s: ClassVar[float] = 30.0
    """Time limit of an episode that a policy plays, seconds."""
    texts: ClassVar[Mapping[str, str]]
    """Words of the page: agent, goal, progress, threshold, tagline, record, failed."""

    @abc.abstractmethod
    def start(self, seed: int) -> tuple[np.ndarray, Mapping[str, object]]:
        """Start an episode from a seed; return state and info."""

    @abc.abstractmethod
    def advance(self, action: np.ndarray, dragged: np.ndarray | None = None) -> TableStep:
        """Run one control period; a user may drag the block, if the task has one, to a pose (3,)."""

    @abc.abstractmethod
    def command_point(self, state: np.ndarray, point: np.ndarray) -> np.ndarray:
        """Return the action that brings the agent closest to a position."""

    @abc.abstractmethod
    def find_targets(self, state: np.ndarray, last_action: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the positions that are commanded in a state and by the actions to come, (n + 1, 2).

        `last_action` led to the state; `actions` are (n, act_dim).
        """

    @abc.abstractmethod
    def describe(self, state: np.ndarray) -> list[float]:
        """Return a frame of the task's scene on the page: agent x, y, and the rest of what moves."""

    def clip(self, action: np.ndarray) -> np.ndarray:
        """Return an action within its limits."""
        clipped: np.ndarray = np.clip(action, *self.limits)
        return clipped

    def measure(self, state: np.ndarray) -> np.ndarray:
        """Return the values that a policy with a camera observes in addition to its picture."""
        raise EnvError("this task has no camera")

    def draw_camera(self, state: np.ndarray, width: int, height: int) -> np.ndarray:
        """Draw what the camera sees, (height, width, 3) uint8."""
        raise EnvError("this task has no camera")
