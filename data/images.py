"""Images of demonstrations, read on demand as uint8."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import DemoError

from .readers import open_source
from .roles import check_scale, find_camera
from .source import Source, SourceArray


class LazyFrames:
    """Frames of demonstrations, (frames, …), read only when indexed.

    Formats decode many frames at a time, often more than 100, so read slices. The scale of floats is
    judged by the frames that are read, until one is brighter than 1.
    """

    def __init__(self, array: SourceArray, frames: int) -> None:
        self._array = array
        self.shape = (frames, *array.shape[1:])
        self.dtype = np.dtype(np.uint8)
        self._has_known_scale = False

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> npt.NDArray[np.uint8]:
        """Read one frame or a slice of consecutive ones; floats are rounded, not rescaled."""
        frames = range(len(self))[index]  # raises IndexError for a frame that does not exist
        if isinstance(frames, int):
            return self[frames : frames + 1].reshape(self.shape[1:])
        if frames.step != 1:
            raise IndexError(f"only consecutive frames can be sliced, got a step of {frames.step}")
        values = self._array.read(frames.start, max(frames.start, frames.stop))
        if values.dtype == np.uint8:
            return values
        if values.size and not self._has_known_scale:
            brightest = float(values.max())
            check_scale(self._array.name, values.dtype, brightest)
            self._has_known_scale = brightest > 1
        rounded = np.rint(values)
        outside = ~((rounded >= 0) & (rounded <= 255))
        if outside.any():
            at = np.unravel_index(int(np.argmax(outside)), values.shape)
            raise DemoError(
                f"{self._array.name}: {values[at]} at frame {frames.start + at[0]}, expected 0 to 255"
            )
        return rounded.astype(np.uint8)


def open_images(path: Path | str, *, key: str = "img") -> LazyFrames:
    """Open the image array `key`; its files are checked for existence, not decoded."""
    return open_images_from(open_source(path), key)


def open_images_from(source: Source, key: str) -> LazyFrames:
    """Open the image array `key` of an open source; see `open_images`."""
    ends, (array, *_) = source.open_episodes(find_camera(source, key))
    if len(array.shape) < 3:
        raise DemoError(f"{array.name} has shape {array.shape}, expected images (frames, height, width, …)")
    array.check_parts(int(ends[-1]))
    return LazyFrames(array, int(ends[-1]))
