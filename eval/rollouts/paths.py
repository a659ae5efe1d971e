"""Paths of episodes: where an episode went, at few moments and in few bytes."""

import base64
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

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
        """Return the paths, (episodes, PATH_POINTS, 2)."""
        changes = np.frombuffer(zlib.decompress(base64.b64decode(self.data)), "<i2")
        steps = changes.reshape(episodes, 2, PATH_POINTS).cumsum(axis=2).swapaxes(1, 2)
        low, high = np.array(self.low), np.array(self.high)
        paths: np.ndarray = low + steps / PATH_STEPS * (high - low)
        return paths
