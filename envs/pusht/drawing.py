"""Pictures of Push-T: the benchmark's 96×96 frame for image policies, and a sharp one for people.

Uses only pygame's software surfaces, so it needs no display.
"""

import math
import os
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..drawing import Canvas, Colour, Palette, widen
from . import geometry

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

Pixel = tuple[int, int]


# --- The benchmark's frame -----------------------------------------------------------------------
# Drawn on the 512 table in whole pixels and sampled down without averaging: the frames of the
# demonstrations were made like that, and an image policy is sensitive to every artefact.

_WHITE: Colour = (255, 255, 255)
_GOAL_COLOUR: Colour = (144, 238, 144)
_BLOCK_COLOUR: Colour = (119, 136, 153)
_AGENT_COLOUR: Colour = (65, 105, 225)
_WALL: Colour = (211, 211, 211)
_STROKE = 2
"""Half the width of an outline."""


def benchmark_frame(
    agent: Sequence[float], block: Sequence[float], width: int = 96, height: int = 96
) -> np.ndarray:
    """Draw what image policies see: agent (x, y) and block (x, y, angle); (height, width, 3) uint8."""
    surface = pygame.Surface((int(geometry.SIDE), int(geometry.SIDE)))
    surface.fill(_WHITE)
    for part in geometry.PARTS:
        pygame.draw.polygon(surface, _GOAL_COLOUR, _whole_pixels(part, geometry.GOAL_POSE))
    for part in geometry.PARTS:
        outline = _whole_pixels(part, block)
        pygame.draw.polygon(surface, _lighter(_BLOCK_COLOUR), outline)
        _draw_outline(surface, _BLOCK_COLOUR, outline)
    centre = round(agent[0]), round(agent[1])
    radius = round(geometry.AGENT_RADIUS)
    pygame.draw.circle(surface, _AGENT_COLOUR, centre, radius)
    pygame.draw.circle(surface, _lighter(_AGENT_COLOUR), centre, radius - 2 * _STROKE)
    _draw_outline(surface, _WALL, geometry.WALL_CORNERS)
    return resize(pygame.surfarray.pixels3d(surface).swapaxes(0, 1), width, height)


def _whole_pixels(part: geometry.Box, pose: Sequence[float]) -> list[Pixel]:
    return [(round(x), round(y)) for x, y in geometry.to_world(geometry.corners(part), pose)]


def _lighter(colour: Colour) -> Colour:
    r, g, b = (min(round(1.2 * c), 255) for c in colour)
    return r, g, b


def _draw_outline(surface: pygame.Surface, colour: Colour, corners: Sequence[Pixel]) -> None:
    """Draw lines as in the recorded frames: a stroke, a sliver next to it, round ends.

    The sliver's offset ignores the sign of the slope, so falling lines come out thinner than rising
    ones, as in the recorded frames.
    """
    for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
        pygame.draw.line(surface, colour, a, b, 2 * _STROKE)
        run, rise = abs(b[0] - a[0]), abs(b[1] - a[1])
        scale = _STROKE / math.hypot(run, rise)
        pygame.draw.polygon(surface, colour, widen(a, b, round(rise * scale), round(run * scale)))
        for end in (a, b):
            pygame.draw.circle(surface, colour, end, _STROKE)


def resize(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Sample bilinearly at the centres of a (height, width) grid, without averaging in between.

    Uses the fixed-point arithmetic of the recorded frames: weights of 11 bits, columns first.
    """
    left, right, w = _sample_axis(image.shape[1], width)

    def sample_columns(rows: np.ndarray) -> np.ndarray:
        near, far = (image[rows[:, None], columns] for columns in (left, right))
        sampled: np.ndarray = near * (2048 - w)[:, None] + far * w[:, None]
        return sampled >> 4

    above, below, v = _sample_axis(image.shape[0], height)
    upper = ((2048 - v)[:, None, None] * sample_columns(above)) >> 16
    lower = (v[:, None, None] * sample_columns(below)) >> 16
    sampled: np.ndarray = ((upper + lower + 2) >> 2).astype(np.uint8)
    return sampled


@lru_cache(maxsize=64)
def _sample_axis(n: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the two neighbours of each of `size` samples of an axis of n pixels, and the second's weight."""
    at = np.clip((np.arange(size) + 0.5) * (n / size) - 0.5, 0, n - 1)
    low = at.astype(np.int32)
    return low, np.minimum(low + 1, n - 1), np.rint((at - low) * 2048).astype(np.int32)


# --- The frame for people ------------------------------------------------------------------------


def frame(
    agent: Sequence[float],
    block: Sequence[float],
    *,
    size: int = 512,
    target: Sequence[float] | None = None,
    futures: np.ndarray | None = None,
    ghosts: Sequence[Sequence[float]] = (),
) -> np.ndarray:
    """Draw a sharp frame of any size for people, (size, size, 3) uint8, given positions on the 512 table.

    The target is a cross. `futures` are sampled paths of the agent, the present first, (steps + 1, n, 2).
    `ghosts` are poses that the block may take, drawn as faint outlines.
    """
    canvas = Canvas(size)
    for part in geometry.PARTS:
        canvas.polygon(Palette.goal, geometry.to_world(geometry.corners(part), geometry.GOAL_POSE))
    canvas.loop(Palette.goal_edge, geometry.to_world(geometry.OUTLINE, geometry.GOAL_POSE), width=1.5)
    canvas.loop(Palette.wall, geometry.WALL_CORNERS, width=4)
    if ghosts:
        with canvas.layer():
            for pose in ghosts:
                canvas.polygon((*Palette.block_edge, 22), geometry.to_world(geometry.OUTLINE, pose))
            for pose in ghosts:
                canvas.loop((*Palette.block_edge, 120), geometry.to_world(geometry.OUTLINE, pose), width=1.2)
    for part in geometry.PARTS:
        canvas.polygon(Palette.block, geometry.to_world(geometry.corners(part), block))
    canvas.loop(Palette.block_edge, geometry.to_world(geometry.OUTLINE, block), width=2.5)
    if futures is not None:
        canvas.futures(futures)
    canvas.disc(Palette.agent_edge, agent, geometry.AGENT_RADIUS)
    canvas.disc(Palette.agent, agent, geometry.AGENT_RADIUS - 2.5)
    if target is not None:
        canvas.cross(Palette.target, target)
    return canvas.picture()
