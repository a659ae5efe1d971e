"""Shapes of Push-T: the T, and the share of the goal that it covers.

Plain floats: at one call per control period, numpy's overhead exceeds the arithmetic. Lengths are pixels
of the 512 table, angles radians, y points down.
"""

import math
from collections.abc import Sequence

SIDE = 512.0
AGENT_RADIUS = 15.0
WALL_CORNERS = ((5, 5), (506, 5), (506, 506), (5, 506))
"""Middle of the walls, in whole pixels."""
_TOP_LEFT, _TOP_RIGHT, _BOTTOM_RIGHT, _BOTTOM_LEFT = WALL_CORNERS
WALLS = (
    (_BOTTOM_LEFT, _TOP_LEFT),
    (_TOP_LEFT, _TOP_RIGHT),
    (_TOP_RIGHT, _BOTTOM_RIGHT),
    (_BOTTOM_LEFT, _BOTTOM_RIGHT),
)
"""Ends of the left, top, right and bottom wall, in the benchmark's order: contacts are solved by it."""
GOAL_POSE = (256.0, 256.0, math.pi / 4)
"""Goal of the block: x, y, angle of its origin."""
SUCCESS_COVERAGE = 0.95
"""Covered share of the goal's area that a success must exceed."""

Box = tuple[float, float, float, float]
Point = tuple[float, float]
Pose = tuple[float, float, float]
"""x, y, angle of the block's origin."""

# The T in its own frame; the origin is the middle of the bar's outer edge:
#
#       (-60, 0) ────────o──────── (60, 0)
#           │           bar           │
#      (-60, 30) ──┬───────────┬── (60, 30)
#                  │   stem    │
#             (-15, 120) ─ (15, 120)
BAR: Box = (-60.0, 0.0, 60.0, 30.0)
"""x_min, y_min, x_max, y_max in the block's frame."""
STEM: Box = (-15.0, 30.0, 15.0, 120.0)
PARTS = (BAR, STEM)
AREA = 120.0 * 30.0 + 30.0 * 90.0
CENTRE_OF_GRAVITY: Point = (0.0, 45.0)
"""Mean of the two parts' centres, not weighted by area, as in the benchmark."""


def corners(box: Box) -> list[Point]:
    """Return the four corners of a box, in order around it."""
    x0, y0, x1, y1 = box
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


_BAR, _STEM = corners(BAR), corners(STEM)
OUTLINE = (*_BAR[:3], *_STEM[1:], _STEM[0], _BAR[3])
"""The eight corners of the whole T."""


def to_world(points: Sequence[Point], pose: Sequence[float]) -> list[Point]:
    """Transform points from the block's frame to the table by `pose` (x, y, angle)."""
    x, y, angle = pose
    c, s = math.cos(angle), math.sin(angle)
    return [(x + c * u - s * v, y + s * u + c * v) for u, v in points]


_GOAL_X, _GOAL_Y, _GOAL_ANGLE = GOAL_POSE
_GOAL_COS, _GOAL_SIN = math.cos(_GOAL_ANGLE), math.sin(_GOAL_ANGLE)
_REACH = max(math.hypot(u, v) for u, v in OUTLINE)


def coverage(pose: Sequence[float]) -> float:
    """Return the exact share of the goal's area that a block at `pose` covers, in [0, 1].

    Both Ts are two boxes that share an edge, so the overlap is the sum of four box-with-box
    overlaps, computed in the goal's frame, where the goal's boxes are upright.
    """
    x, y, angle = pose
    dx, dy = x - _GOAL_X, y - _GOAL_Y
    if dx * dx + dy * dy > 4 * _REACH * _REACH:
        return 0.0
    u, v = _GOAL_COS * dx + _GOAL_SIN * dy, -_GOAL_SIN * dx + _GOAL_COS * dy
    overlap = 0.0  # not `sum`, which rounds differently from Python 3.12 on
    for part in (_BAR, _STEM):
        polygon = to_world(part, (u, v, angle - _GOAL_ANGLE))
        for goal in PARTS:
            overlap += _clipped_area(polygon, goal)
    return min(overlap / AREA, 1.0)


def move_inside(pose: Sequence[float], low: float, high: float) -> Pose:
    """Move a pose as little as needed for every corner of the T to lie in [low, high]²."""
    x, y, angle = pose
    xs, ys = zip(*to_world(OUTLINE, pose), strict=True)
    x += max(low - min(xs), 0.0) + min(high - max(xs), 0.0)
    y += max(low - min(ys), 0.0) + min(high - max(ys), 0.0)
    return x, y, angle


def _clipped_area(polygon: list[Point], box: Box) -> float:
    """Return the area of a convex polygon inside an upright box."""
    x0, y0, x1, y1 = box
    for axis, bound, sign in ((0, x0, 1.0), (0, x1, -1.0), (1, y0, 1.0), (1, y1, -1.0)):
        polygon = _cut(polygon, axis, bound, sign)
        if not polygon:
            return 0.0
    twice = 0.0  # shoelace formula
    ax, ay = polygon[-1]
    for bx, by in polygon:
        twice += ax * by - bx * ay
        ax, ay = bx, by
    return abs(twice) / 2


def _cut(polygon: list[Point], axis: int, bound: float, sign: float) -> list[Point]:
    """Keep the side of a line parallel to an axis where sign · (coordinate − bound) ≥ 0."""
    inside: list[Point] = []
    a = polygon[-1]
    side_a = sign * (a[axis] - bound)
    for b in polygon:
        side_b = sign * (b[axis] - bound)
        if (side_a < 0.0) != (side_b < 0.0):
            t = side_a / (side_a - side_b)
            inside.append((a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])))
        if side_b >= 0.0:
            inside.append(b)
        a, side_a = b, side_b
    return inside
