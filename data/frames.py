"""Frames for training: resized once, kept in a file, read in batches of any order with bounded memory."""

import math
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nsde_policy.errors import DemoError, NsdePolicyError

if TYPE_CHECKING:
    from .images import LazyFrames

Bytes = npt.NDArray[np.uint8]
BLOCK_BYTES = 64 * 2**20
"""Frames are decoded in blocks of about this size."""
DESCRIBED_ROWS = 64
"""Rows of a large frame that describe it: at least this many, and fewer than twice as many."""


def resize_frames(frames: Bytes, size: int) -> Bytes:
    """Resize frames (n, height, width, 3) to (n, size, size, 3) uint8; the aspect ratio is not kept.

    Each new pixel is a weighted mean under a triangle as wide as a pixel of the coarser grid, so that
    shrinking does not alias.
    """
    n, height, width, _ = frames.shape
    if (height, width) == (size, size):
        return frames
    out = np.empty((n, size, size, 3), np.uint8)
    for i, frame in enumerate(frames):
        narrow = _resize_rows(frame.astype(np.float32).swapaxes(0, 1), size)
        small = _resize_rows(narrow.swapaxes(0, 1), size)
        out[i] = np.clip(np.rint(small), 0, 255)
    return out


def read_resized(camera: "LazyFrames", rows: range, size: int) -> Bytes:
    """Read consecutive frames block by block, so that memory holds all of them in their new size only."""
    block = _block_length(camera)
    starts = range(rows.start, rows.stop, block)
    return np.concatenate([resize_frames(camera[row : min(row + block, rows.stop)], size) for row in starts])


def _block_length(camera: "LazyFrames") -> int:
    return max(1, BLOCK_BYTES // math.prod(camera.shape[1:]))


def _resize_rows(frame: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    """Resize the first axis; without a matrix product, whose threads would wait for each other."""
    taps = _make_taps(len(frame), size)
    return sum((weights * frame[index] for index, weights in taps), np.zeros((), np.float32))


@lru_cache(maxsize=64)
def _make_taps(old: int, new: int) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Return the old pixels that each new one is a mean of: their index (new,) and weight (new, 1, 1)."""
    scale = old / new
    centre = (np.arange(new) + 0.5) * scale - 0.5
    reach = max(scale, 1.0)
    index = np.floor(centre - reach)[:, None] + np.arange(1, 2 * int(np.ceil(reach)) + 1)
    weights = np.maximum(1.0 - np.abs(index - centre[:, None]) / reach, 0.0) * (index >= 0) * (index < old)
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    places = np.clip(index, 0, old - 1).astype(np.int64)
    return [(places[:, k], weights[:, k, None, None]) for k in range(index.shape[1])]


def check_frames(images: "LazyFrames", name: str) -> None:
    """Raise `DemoError` unless an array holds colour images, (frames, height, width, 3)."""
    if len(images.shape) != 4 or images.shape[3] != 3:
        raise DemoError(
            f"data/{name} has shape {images.shape}, expected colour images (frames, height, width, 3)"
        )


def describe_frame(frame: Bytes) -> npt.NDArray[np.float64]:
    """Return brightness, contrast and detail of a frame (height, width, 3), grey values from 0 to 255.

    They are the mean of all values, their standard deviation, and the mean difference between neighbours in
    a row. Of large frames, only some rows are used.
    """
    values = frame[:: max(1, len(frame) // DESCRIBED_ROWS)].astype(np.float32)
    detail = np.abs(np.diff(values, axis=1)).mean() if values.shape[1] > 1 else 0.0
    return np.array([values.mean(), values.std(), detail], np.float64)


class FrameFile:
    """Resized frames of all cameras in a temporary file, which vanishes with this object.

    Reading frames in random order from a compressed store would decode a whole chunk for each. They are
    decoded once, block by block, and read back by position: memory does not grow with the number of frames.
    The first `count` frames of each camera are resized to `size` × `size`; the file is made in `folder`.
    """

    def __init__(self, cameras: Sequence["LazyFrames"], count: int, *, size: int, folder: Path) -> None:
        self.size = size
        self.looks = np.zeros((len(cameras), count, 3), np.float32)
        """Brightness, contrast and detail of each frame before it was resized, by camera."""
        self.repeats = np.zeros((len(cameras), count), bool)
        """Whether each frame is equal to the one before, by camera."""
        shape = (len(cameras), count, size, size, 3)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            for index, camera in enumerate(cameras):
                self._append(index, camera)
            self._file.flush()
            self._frames = np.memmap(self._file, np.uint8, "r", shape=shape)
        except OSError as error:
            raise NsdePolicyError(
                f"{folder}: {math.prod(shape) / 1e6:.0f} MB of frames cannot be written: {error.strerror}; "
                "free some space, or choose another --out"
            ) from error

    def _append(self, index: int, camera: "LazyFrames") -> None:
        block, before = _block_length(camera), None
        for start in range(0, len(self), block):
            frames = camera[start : min(start + block, len(self))]
            for row, frame in enumerate(frames, start):
                self.looks[index, row] = describe_frame(frame)
                self.repeats[index, row] = before is not None and np.array_equal(frame, before)
                before = frame
            self._file.write(np.ascontiguousarray(resize_frames(frames, self.size)).data)

    def __len__(self) -> int:
        return self.looks.shape[1]

    def read(self, index: npt.NDArray[np.int64]) -> list[Bytes]:
        """Read frames by their index, in any order; returns (n, size, size, 3) for each camera."""
        return [np.asarray(camera[index]) for camera in self._frames]

    def close(self) -> None:
        """Delete the temporary file."""
        del self._frames
        self._file.close()
