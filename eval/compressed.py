"""Compressed pictures of an episode; uncompressed ones of 1000 steps would take 700 MB."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class CompressedPicture:
    """One picture, of any shape."""

    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def compress(cls, picture: np.ndarray) -> "CompressedPicture":
        """Compress an array of type uint8 quickly."""
        return cls(picture.shape, zlib.compress(picture.tobytes(), 1))

    def decompress(self) -> npt.NDArray[np.uint8]:
        """Return the picture as given to `compress`."""
        return np.frombuffer(zlib.decompress(self.data), np.uint8).reshape(self.shape)


class CompressedFrames:
    """Pictures of one shape as an array (frames, height, width, 3) uint8 that is decompressed in slices."""

    def __init__(self, pictures: Sequence[CompressedPicture]) -> None:
        self._pictures = pictures
        self.shape = (len(pictures), *pictures[0].shape)
        self.dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, rows: slice) -> npt.NDArray[np.uint8]:
        """Decompress some consecutive pictures, (rows, height, width, 3)."""
        frames = [picture.decompress() for picture in self._pictures[rows]]
        return np.stack(frames) if frames else np.zeros((0, *self.shape[1:]), np.uint8)
