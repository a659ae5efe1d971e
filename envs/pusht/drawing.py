"""Pictures of Push-T: the benchmark's 96×96 frame for image policies, and a sharp one for people.

Uses only pygame's software surfaces, so it needs no display.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from nsde_policy.envs.pusht import geometry
from nsde_policy.errors import EnvInputError

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
import pygame

Colour = tuple[int, int, int]
Paint = Colour | tuple[int, int, int, int]
"""A colour, with an opacity on layers."""
Pixel = tuple[int, int]


def _pixels(surface: pygame.Surface) -> np.ndarray:
    """Copy a surface into an image array, (height, width, 3) uint8."""
    return np.ascontiguousarray(pygame.surfarray.pixels3d(surface).swapaxes(0, 1))


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
    """Draw lines as in the recorded frames: a stroke, a sliver beside it, round ends.

    The sliver's offset ignores the sign of the slope, so falling lines come out thinner than rising
    ones, as in the recorded frames.
    """
    for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
        pygame.draw.line(surface, colour, a, b, 2 * _STROKE)
        run, rise = abs(b[0] - a[0]), abs(b[1] - a[1])
        scale = _STROKE / math.hypot(run, rise)
        pygame.draw.polygon(surface, colour, _widen(a, b, round(rise * scale), round(run * scale)))
        for end in (a, b):
            pygame.draw.circle(surface, colour, end, _STROKE)


def _widen(a: Sequence[float], b: Sequence[float], dx: float, dy: float) -> list[tuple[float, float]]:
    """Return the corners of a line from `a` to `b` that reaches (dx, dy) to both sides."""
    return [(a[0] - dx, a[1] - dy), (a[0] + dx, a[1] + dy), (b[0] + dx, b[1] + dy), (b[0] - dx, b[1] - dy)]


def resize(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Sample bilinearly at the centres of a (height, width) grid, without averaging in between.

    Uses the fixed-point arithmetic of the recorded frames: weights of 11 bits, columns first.
    """
    if image.shape[:2] == (height, width):
        return np.ascontiguousarray(image)
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
    region: Colour = (230, 159, 0)


_SUPERSAMPLING = 3
MAX_SIZE = 8192
"""Side of the largest picture for people."""


def frame(
    agent: Sequence[float],
    block: Sequence[float],
    *,
    size: int = 512,
    target: Sequence[float] | None = None,
    paths: np.ndarray | None = None,
    regions: Sequence[np.ndarray] = (),
    ghosts: Sequence[Sequence[float]] = (),
) -> np.ndarray:
    """Draw a sharp frame of any size for people, (size, size, 3) uint8.

    Args:
        agent: Centre of the agent, (x, y) in pixels of the 512 table.
        block: Pose of the block, (x, y, angle).
        size: Side of the picture in its own pixels.
        target: Target of the agent, drawn as a cross.
        paths: Planned paths of the agent, (n_paths, n_points, 2), fading towards their ends.
        regions: Areas the agent may reach, convex polygons (n_corners, 2), together one translucent area.
        ghosts: Poses the block may take or has had, drawn as faint outlines.
    """
    if not 1 <= size <= MAX_SIZE:
        raise EnvInputError(f"a picture must be 1 to {MAX_SIZE} pixels wide, got {size}")
    canvas = _Canvas(size * _SUPERSAMPLING)
    canvas.surface.fill(Palette.table)
    for part in geometry.PARTS:
        canvas.polygon(Palette.goal, geometry.to_world(geometry.corners(part), geometry.GOAL_POSE))
    canvas.loop(Palette.goal_edge, geometry.to_world(geometry.OUTLINE, geometry.GOAL_POSE), width=1.5)
    canvas.loop(Palette.wall, geometry.WALL_CORNERS, width=4)
    with canvas.layer():
        for pose in ghosts:
            canvas.polygon((*Palette.block_edge, 22), geometry.to_world(geometry.OUTLINE, pose))
        for pose in ghosts:
            canvas.loop((*Palette.block_edge, 120), geometry.to_world(geometry.OUTLINE, pose), width=1.2)
    for part in geometry.PARTS:
        canvas.polygon(Palette.block, geometry.to_world(geometry.corners(part), block))
    canvas.loop(Palette.block_edge, geometry.to_world(geometry.OUTLINE, block), width=2.5)
    with canvas.layer():
        for region in regions:
            canvas.polygon((*Palette.region, 230), _grow(region, 1.0))
        for region in regions:
            canvas.polygon((*Palette.region, 90), region)
    with canvas.layer():
        for path in () if paths is None else paths:
            if np.ndim(path) != 2 or np.shape(path)[1] != 2:
                raise EnvInputError(f"a path must have shape (n_points, 2), got {np.shape(path)}")
            canvas.fading_line(Palette.target, path, width=1.2)
    canvas.disc(Palette.agent_edge, agent, geometry.AGENT_RADIUS)
    canvas.disc(Palette.agent, agent, geometry.AGENT_RADIUS - 2.5)
    if target is not None:
        x, y = target
        canvas.line(Palette.target, (x - 8, y), (x + 8, y), width=3)
        canvas.line(Palette.target, (x, y - 8), (x, y + 8), width=3)
    return _pixels(pygame.transform.smoothscale(canvas.surface, (size, size)))


def _grow(polygon: np.ndarray, by: float) -> np.ndarray:
    """Move the corners of a convex polygon away from its centre."""
    off = polygon - polygon.mean(axis=0)
    grown: np.ndarray = polygon + by * off / np.maximum(np.linalg.norm(off, axis=1, keepdims=True), 1e-9)
    return grown


_ELLIPSES = 4
"""Ellipses per control period: enough to look like a tube."""


def spread_regions(points: np.ndarray, *, sigmas: float = 2.0) -> list[np.ndarray]:
    """Return ellipses of `sigmas` standard deviations around sampled paths (steps, n, 2), as polygons.

    Mean and covariance are interpolated between steps, so that the ellipses together look like a tube.
    """
    mean = points.mean(axis=1)
    off = points - mean[:, None]
    covariance = _subdivide(np.einsum("tni,tnj->tij", off, off) / (points.shape[1] - 1))
    variances, axes = np.linalg.eigh(covariance)
    reach = sigmas * np.sqrt(np.maximum(variances, 0.0))
    angle = np.linspace(0.0, 2 * np.pi, 36, endpoint=False)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return list(_subdivide(mean)[:, None] + np.einsum("pj,tj,tij->tpi", circle, reach, axes))


def _subdivide(values: np.ndarray) -> np.ndarray:
    """Add linear steps between neighbours along the first axis."""
    weights = np.arange(_ELLIPSES).reshape(-1, *[1] * values.ndim) / _ELLIPSES
    between = values[:-1] * (1 - weights) + values[1:] * weights  # (_ELLIPSES, steps - 1, …)
    return np.concatenate([between.swapaxes(0, 1).reshape(-1, *values.shape[1:]), values[-1:]])


class _Canvas:
    """A surface of any size that is drawn on in pixels of the 512 table."""

    def __init__(self, side: int) -> None:
        self.surface = pygame.Surface((side, side))
        self._scale = side / geometry.SIDE
        self._used = pygame.Rect(0, 0, 0, 0)

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Draw on a transparent layer and blend it as a whole, so that overlapping shapes do not add up."""
        below, self.surface = self.surface, pygame.Surface(self.surface.get_size(), pygame.SRCALPHA)
        self._used = pygame.Rect(0, 0, 0, 0)
        yield
        below.blit(self.surface, self._used, self._used)
        self.surface = below

    def _at(self, point: Sequence[float]) -> tuple[float, float]:
        return point[0] * self._scale, point[1] * self._scale

    def polygon(self, colour: Paint, corners: Sequence[Sequence[float]] | np.ndarray) -> None:
        self._use(pygame.draw.polygon(self.surface, colour, [self._at(p) for p in corners]))

    def disc(self, colour: Paint, centre: Sequence[float], radius: float) -> None:
        self._use(pygame.draw.circle(self.surface, colour, self._at(centre), radius * self._scale))

    def _use(self, drawn: pygame.Rect) -> None:
        self._used = self._used.union(drawn) if self._used else drawn

    def line(self, colour: Paint, a: Sequence[float], b: Sequence[float], *, width: float) -> None:
        """Draw a line of true width with round ends; pygame's own oblique lines are too thin."""
        length = math.hypot(b[0] - a[0], b[1] - a[1])
        if length > 0:
            dx, dy = (a[1] - b[1]) * width / (2 * length), (b[0] - a[0]) * width / (2 * length)
            self.polygon(colour, _widen(a, b, dx, dy))
        self.disc(colour, a, width / 2)
        self.disc(colour, b, width / 2)

    def loop(self, colour: Paint, corners: Sequence[Sequence[float]], *, width: float) -> None:
        for a, b in zip(corners, [*corners[1:], corners[0]], strict=True):
            self.line(colour, a, b, width=width)

    def fading_line(self, colour: Colour, points: np.ndarray, *, width: float) -> None:
        """Draw a line that gets more translucent towards its end; for layers."""
        last = max(len(points) - 1, 1)
        for i in range(len(points) - 1):
            self.line((*colour, round(230 - 130 * i / last)), points[i], points[i + 1], width=width)
