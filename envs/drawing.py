"""Drawing shared by the environments: colours and a canvas for people, with paths of a forecast.

Uses only pygame's software surfaces, so it needs no display.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from .live import PAGE_SIDE

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

Colour = tuple[int, int, int]
Paint = Colour | tuple[int, int, int, int]
"""A colour, with an opacity on layers."""
_SUPERSAMPLING = 3


class Palette:
    """Colours of the frame for people, distinct in grey and for colour-blind readers."""

    table: Colour = (250, 250, 248)
    wall: Colour = (206, 208, 212)
    goal: Colour = (178, 223, 178)
    goal_edge: Colour = (96, 160, 104)
    block: Colour = (118, 132, 150)
    block_edge: Colour = (66, 78, 96)
    agent: Colour = (0, 114, 178)
    agent_edge: Colour = (0, 72, 116)
    target: Colour = (213, 94, 0)


class Canvas:
    """A picture of `size` × `size` pixels, drawn in pixels of a table that is 512 wide and high."""

    def __init__(self, size: int) -> None:
        side = size * _SUPERSAMPLING
        self.surface = pygame.Surface((side, side))
        self.surface.fill(Palette.table)
        self._size, self._scale = size, side / PAGE_SIDE

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Draw on a transparent layer and blend it as a whole, so that overlapping shapes do not add up."""
        below, self.surface = self.surface, pygame.Surface(self.surface.get_size(), pygame.SRCALPHA)
        yield
        below.blit(self.surface, (0, 0))
        self.surface = below

    def _at(self, point: Sequence[float]) -> tuple[float, float]:
        return point[0] * self._scale, point[1] * self._scale

    def picture(self) -> np.ndarray:
        """Return what is drawn, (size, size, 3) uint8."""
        scaled = pygame.transform.smoothscale(self.surface, (self._size, self._size))
        return np.ascontiguousarray(pygame.surfarray.pixels3d(scaled).swapaxes(0, 1))

    def polygon(self, colour: Paint, corners: Sequence[Sequence[float]] | np.ndarray) -> None:
        """Fill a polygon with a colour."""
        pygame.draw.polygon(self.surface, colour, [self._at(p) for p in corners])

    def disc(self, colour: Paint, centre: Sequence[float], radius: float) -> None:
        """Fill a circle with a colour."""
        pygame.draw.circle(self.surface, colour, self._at(centre), radius * self._scale)

    def line(self, colour: Paint, a: Sequence[float], b: Sequence[float], *, width: float) -> None:
        """Draw a line of true width with round ends; pygame's own oblique lines are too thin."""
        length = math.hypot(b[0] - a[0], b[1] - a[1])
        if length > 0:
            dx, dy = (a[1] - b[1]) * width / (2 * length), (b[0] - a[0]) * width / (2 * length)
            self.polygon(colour, widen(a, b, dx, dy))
        self.disc(colour, a, width / 2)
        self.disc(colour, b, width / 2)

    def loop(self, colour: Paint, corners: Sequence[Sequence[float]], *, width: float) -> None:
        """Draw the outline of a polygon."""
        for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
            self.line(colour, a, b, width=width)

    def cross(self, colour: Paint, centre: Sequence[float]) -> None:
        """Mark a commanded position."""
        x, y = centre
        self.line(colour, (x - 8, y), (x + 8, y), width=3)
        self.line(colour, (x, y - 8), (x, y + 8), width=3)

    def futures(self, points: np.ndarray) -> None:
        """Draw sampled paths (steps + 1, n, 2), the present first, which fade."""
        with self.layer():
            for path in points.swapaxes(0, 1):
                for i, (a, b) in enumerate(itertools.pairwise(path)):
                    opacity = round(230 - 130 * i / (len(path) - 1))
                    self.line((*Palette.target, opacity), a, b, width=1.2)


def widen(a: Sequence[float], b: Sequence[float], dx: float, dy: float) -> list[tuple[float, float]]:
    """Return the corners of a line from `a` to `b` that reaches (dx, dy) to both sides."""
    return [(a[0] - dx, a[1] - dy), (a[0] + dx, a[1] + dy), (b[0] + dx, b[1] + dy), (b[0] - dx, b[1] - dy)]
