"""Geometry of obstacle avoidance after the D3IL benchmark (Jia et al., ICLR 2024), in metres, y up.

Six round obstacles stand on three levels. A path passes level 1 on one of two sides, level 2 through one of
three gaps and level 3 through one of four: 24 modes.
"""

import math
from collections.abc import Sequence

from ..live import PAGE_SIDE, PageMap

ROD_RADIUS = 0.01
OBSTACLES = (
    (0.5, -0.1, 0.03),
    (0.425, 0.08, 0.025),
    (0.575, 0.08, 0.025),
    (0.35, 0.26, 0.025),
    (0.5, 0.26, 0.025),
    (0.65, 0.26, 0.025),
)
"""x, y and radius of each obstacle."""
OBSTACLE_LEVELS = ((-0.1, (0.5,)), (0.08, (0.425, 0.575)), (0.26, (0.35, 0.5, 0.65)))
"""y of each level, and the x that separate its gaps."""
LEVEL_REACH = 0.03
"""Distance from levels 1 and 2 within which the side is read; an obstacle is wider, so it is unambiguous."""
N_MODES = 24
UNKNOWN_MODE = -1
"""Mode of a path that has not passed all levels."""
FINISH_Y = 0.35
"""y of the line that ends an episode with success."""
TABLE_LOW, TABLE_SIZE = (0.15, -0.32), 0.7
"""Lower left corner and side of the square table, to which commands are clipped."""
TABLE_HIGH = (TABLE_LOW[0] + TABLE_SIZE, TABLE_LOW[1] + TABLE_SIZE)
PIXELS_PER_METRE = PAGE_SIDE / TABLE_SIZE
PAGE = PageMap((PIXELS_PER_METRE, -PIXELS_PER_METRE), (TABLE_LOW[0], TABLE_HIGH[1]))
"""Maps the table to pixels of pictures and of the live page."""
FIXED_START = (0.525, -0.28)
VARIED_STARTS = ((0.4, 0.6), (-0.3, -0.24))
"""Ranges of x and y from which varied starts are drawn."""


def find_gap(x: float, level: int) -> int:
    """Return the gap of a level (0 to 2) in which x lies, counted from the left."""
    return sum(x > border for border in OBSTACLE_LEVELS[level][1])


class ModeReader:
    """Reads the mode of a path from its positions, in order."""

    def __init__(self) -> None:
        self._gaps: list[int | None] = [None, None, None]

    @property
    def mode(self) -> int:
        """Mode from 0 to 23, 12 · side + 4 · gap of level 2 + gap of level 3; -1 while it is unknown."""
        side, middle, upper = self._gaps
        if side is None or middle is None or upper is None:
            return UNKNOWN_MODE
        return 12 * side + 4 * middle + upper

    def add(self, x: float, y: float) -> None:
        """Read a position: levels 1 and 2 near them, at the last visit; level 3 at the first y above it."""
        if y >= OBSTACLE_LEVELS[2][0]:
            if self._gaps[2] is None:
                self._gaps[2] = find_gap(x, 2)
        elif abs(y - OBSTACLE_LEVELS[1][0]) <= LEVEL_REACH:
            self._gaps[1] = find_gap(x, 1)
        elif abs(y - OBSTACLE_LEVELS[0][0]) <= LEVEL_REACH:
            self._gaps[0] = find_gap(x, 0)


def measure_clearance(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the distance between rod and nearest obstacle along the straight segment from `a` to `b`.

    It is negative if they touch.
    """
    ax, ay = a
    dx, dy = b[0] - ax, b[1] - ay
    length2 = dx * dx + dy * dy
    nearest = math.inf
    for x, y, radius in OBSTACLES:
        px, py = x - ax, y - ay
        fraction = min(max((px * dx + py * dy) / length2, 0.0), 1.0) if length2 else 0.0
        gap = math.hypot(px - fraction * dx, py - fraction * dy) - radius
        if gap < nearest:
            nearest = gap
    return nearest - ROD_RADIUS
