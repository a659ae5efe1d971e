"""Pictures of obstacle avoidance for people."""

from collections.abc import Sequence

import numpy as np

from ..drawing import Canvas, Palette
from ..live import PAGE_SIDE
from . import geometry
from .geometry import PIXELS_PER_METRE

to_pixels = geometry.PAGE.to_page


def draw_rod(state: Sequence[float], *, size: int, futures: np.ndarray | None = None) -> np.ndarray:
    """Draw obstacles, finish line and rod, (size, size, 3) uint8.

    The state is the commanded x, y and the actual x, y in metres. Sampled paths of the rod are in metres too,
    the present first, (steps + 1, n, 2).
    """
    canvas = Canvas(size)
    left, right = geometry.TABLE_LOW[0], geometry.TABLE_HIGH[0]
    corners = [(left, geometry.FINISH_Y), (right, geometry.FINISH_Y), geometry.TABLE_HIGH]
    finish = to_pixels(np.array([*corners, (left, geometry.TABLE_HIGH[1])]))
    canvas.polygon(Palette.goal, finish)
    canvas.line(Palette.goal_edge, finish[0].tolist(), finish[1].tolist(), width=2)
    canvas.loop(Palette.wall, [(0, 0), (PAGE_SIDE, 0), (PAGE_SIDE, PAGE_SIDE), (0, PAGE_SIDE)], width=6)
    for x, y, radius in geometry.OBSTACLES:
        centre = to_pixels(np.array((x, y))).tolist()
        canvas.disc(Palette.block_edge, centre, radius * PIXELS_PER_METRE)
        canvas.disc(Palette.block, centre, radius * PIXELS_PER_METRE - 2.5)
    if futures is not None:
        canvas.futures(to_pixels(futures))
    command, rod = to_pixels(np.reshape(state, (2, 2))).tolist()
    canvas.disc(Palette.agent_edge, rod, geometry.ROD_RADIUS * PIXELS_PER_METRE)
    canvas.disc(Palette.agent, rod, geometry.ROD_RADIUS * PIXELS_PER_METRE - 2)
    canvas.cross(Palette.target, command)
    return canvas.picture()
