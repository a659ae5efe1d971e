"""Paths of episodes: where an episode went, at few moments, and which episodes repeat a path.

A deterministic policy repeats one path if it starts in one place. Such episodes are not independent, so
intervals count distinct paths.
"""

import base64
import binascii
import math
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from nsde_policy.errors import ComparisonError
from nsde_policy.tasks import Task

PATH_POINTS = 32
"""Moments of an episode that are kept, evenly spread over its time."""
SAME_PATH = 1e-3
"""Two paths are the same if they differ by no more than this share of the extent of all paths, in every
component at every moment kept: more than rounding errors, less than the noise of a stochastic policy."""

PATH_STEPS = 4095
"""Steps from the smallest to the largest value in a file."""


def shorten_path(states: Sequence[np.ndarray], task: Task) -> np.ndarray:
    """Return the states of an episode at `PATH_POINTS` moments, (PATH_POINTS, components).

    The components are those that the task draws, `Drawing.path_of`, or else all. Between two states, values
    are interpolated.
    """
    columns = slice(None) if task.drawing.path_of is None else list(task.drawing.path_of)
    values = np.asarray(states, dtype=float)[:, columns]
    at = np.linspace(0, len(values) - 1, PATH_POINTS)
    before = np.minimum(at.astype(int), max(len(values) - 2, 0))
    after = np.minimum(before + 1, len(values) - 1)
    path: np.ndarray = values[before] + (at - before)[:, None] * (values[after] - values[before])
    return path


def number_paths(paths: Sequence[np.ndarray] | np.ndarray) -> tuple[int, ...]:
    """Return a number for each path of `shorten_path`; paths that are the same have the same number."""
    found = np.asarray(paths)
    extent = found.max(axis=(0, 1)) - found.min(axis=(0, 1))
    moving = extent > 1e-9 * (1.0 + np.abs(found).max(axis=(0, 1)))
    scaled = (found[..., moving] / extent[moving]).reshape(len(found), -1)
    if not scaled.size:
        return (0,) * len(found)
    numbers: list[int] = []
    distinct, count = np.empty_like(scaled), 0
    for path in scaled:
        near = np.flatnonzero(np.abs(distinct[:count, -1] - path[-1]) <= SAME_PATH)
        same = near[np.abs(distinct[near] - path).max(axis=1) <= SAME_PATH]
        numbers.append(int(same[0]) if same.size else count)
        if not same.size:
            distinct[count] = path
            count += 1
    return tuple(numbers)


class PackedPaths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Paths of episodes in few bytes, about 100 each, for pictures."""

    low: tuple[float, float]
    """Smallest horizontal and vertical value."""
    high: tuple[float, float]
    """Largest horizontal and vertical value."""
    data: str
    """Steps of 1 / 4095 from low to high: differences between moments as 16-bit integers, little endian,
    episode by episode and component by component; deflated, in base64."""

    @classmethod
    def pack(cls, paths: Sequence[np.ndarray]) -> "PackedPaths":
        """Round the paths of episodes, (PATH_POINTS, 2) each."""
        found = np.stack(paths)
        low, high = (end(found, axis=(0, 1)) for end in (np.min, np.max))
        steps = np.rint(PATH_STEPS * (found - low) / np.maximum(high - low, 1e-12)).swapaxes(1, 2)
        changes = np.diff(np.clip(steps, 0, PATH_STEPS), prepend=0).astype("<i2")
        data = base64.b64encode(zlib.compress(changes.tobytes(), 9)).decode()
        return cls((float(low[0]), float(low[1])), (float(high[0]), float(high[1])), data)

    def unpack(self, episodes: int) -> np.ndarray:
        """Return the paths, (episodes, PATH_POINTS, 2), or raise if their number is another."""
        shape = (episodes, 2, PATH_POINTS)
        size = 2 * math.prod(shape)
        try:
            content = zlib.decompressobj().decompress(base64.b64decode(self.data, validate=True), size + 1)
        except (binascii.Error, zlib.error, ValueError) as error:
            raise ComparisonError(f"cannot read paths of episodes: {error}") from None
        if len(content) != size:
            raise ComparisonError(f"expected the paths of {episodes} episodes, {size} bytes, found others")
        steps = np.frombuffer(content, "<i2").reshape(shape).cumsum(axis=2).swapaxes(1, 2)
        low, high = np.array(self.low), np.array(self.high)
        paths: np.ndarray = low + steps / PATH_STEPS * (high - low)
        return paths
