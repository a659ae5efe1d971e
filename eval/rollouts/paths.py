"""Paths of episodes: where an episode went, at few moments and in few bytes."""

import base64
import binascii
import math
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from nsde_policy.errors import ComparisonError

PATH_POINTS = 32
"""Moments of an episode that are kept, evenly spread over its time."""
PATH_STEPS = 4095
"""Steps from the smallest to the largest value in a file."""


def shorten_path(states: Sequence[np.ndarray], columns: tuple[int, int]) -> np.ndarray:
    """Return two components of the states of an episode at `PATH_POINTS` moments, (PATH_POINTS, 2).

    Between two states, values are interpolated.
    """
    values = np.asarray(states, dtype=float)[:, list(columns)]
    moments = np.linspace(0, len(values) - 1, PATH_POINTS)
    return np.stack([np.interp(moments, np.arange(len(values)), column) for column in values.T], axis=1)


class PackedPaths(msgspec.Struct, frozen=True):
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
        points = np.stack(paths)
        low, high = (end(points, axis=(0, 1)) for end in (np.min, np.max))
        steps = np.rint(PATH_STEPS * (points - low) / np.maximum(high - low, 1e-12)).swapaxes(1, 2)
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
