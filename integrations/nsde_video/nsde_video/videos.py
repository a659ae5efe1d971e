"""Videos of a store, and windows of consecutive frames for training and scoring."""

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsde_policy.core.batches import TensorRows
from nsde_policy.data.frames import BLOCK_BYTES, check_frames, resize_frames
from nsde_policy.data.images import LazyFrames
from nsde_policy.data.readers import open_source
from nsde_policy.data.types import Ints
from nsde_policy.errors import DemoError

from .settings import VIDEO_KEY

logger = logging.getLogger(__name__)

SAMPLED_WINDOWS, SAMPLED_FRAMES = 64, 9
"""Windows that increments and the fingerprint are measured on, and most frames of one."""


@dataclass(frozen=True)
class VideoWindows(TensorRows):
    """Windows of consecutive frames; all share one table of frames, on one device."""

    table: Tensor
    """Frames of all videos, (rows, size, size, 3) uint8."""
    starts: Tensor
    """First row of each window, (n,)."""
    length: int
    """Frames of a window."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Tensor) -> Self:
        return replace(self, starts=self.starts[index])

    def to(self, device: torch.device | str) -> Self:
        """Copy to another device."""
        return replace(self, table=self.table.to(device), starts=self.starts.to(device))

    @property
    def frames(self) -> Tensor:
        """Frames of the windows, (n, length, size, size, 3) uint8, oldest first."""
        return self.table[self.starts[:, None] + torch.arange(self.length, device=self.starts.device)]


@dataclass(frozen=True, eq=False)
class Videos:
    """A set of videos."""

    frames: LazyFrames | Tensor
    """Frames in a store or, (rows, size, size, 3) uint8, on a device."""
    episode_ends: Ints
    """One past the last row of each video."""
    size: int
    """Height and width that frames of a store are resized to."""
    name: str
    """Where the videos came from."""

    @classmethod
    def from_tensor(cls, frames: Tensor, *, name: str = "memory") -> Self:
        """Use generated videos, (videos, T, size, size, 3) uint8, where they are."""
        n, length = frames.shape[:2]
        return cls(frames.flatten(0, 1), length * np.arange(1, n + 1), frames.shape[2], name)

    def __len__(self) -> int:
        """Return the number of videos."""
        return len(self.episode_ends)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the lengths of the videos and of a sample of the frames."""
        digest = hashlib.sha256(repr(self.lengths.tolist()).encode())
        digest.update(self._sample.numpy().data)
        return digest.hexdigest()

    @cached_property
    def _sample(self) -> Tensor:
        """Read some windows, spread over all videos, (n, length, size, size, 3)."""
        length = int(np.clip(self.lengths.max(), 2, SAMPLED_FRAMES))
        windows = self.find_windows(length)
        rng = np.random.default_rng(0)
        starts = rng.choice(windows, min(len(windows), SAMPLED_WINDOWS), replace=False)
        return self.read(np.sort(starts), length)

    @property
    def starts(self) -> Ints:
        """First row of each video."""
        return self.episode_ends - self.lengths

    @property
    def lengths(self) -> Ints:
        """Frames of each video."""
        return np.diff(self.episode_ends, prepend=0)

    def find_windows(self, length: int) -> Ints:
        """Return the first row of every window of `length` frames inside one video, or raise `DemoError`."""
        last_starts = self.episode_ends - length
        windows = [np.arange(start, last + 1) for start, last in zip(self.starts, last_starts, strict=True)]
        if not any(map(len, windows)):
            raise DemoError(
                f"{self.name}: the longest of {len(self)} videos has {self.lengths.max(initial=0)} "
                f"frames, a window needs {length}; use longer videos or a shorter window"
            )
        return np.concatenate(windows)

    def read(self, starts: npt.ArrayLike, length: int) -> Tensor:
        """Read windows from their first rows to the CPU, (n, length, size, size, 3) uint8."""
        first = np.asarray(starts, np.int64)
        if isinstance(self.frames, Tensor):
            rows = torch.from_numpy(first[:, None] + np.arange(length))
            return self.frames[rows.to(self.frames.device)].cpu()
        windows = [resize_frames(self.frames[start : start + length], self.size) for start in first.tolist()]
        return torch.from_numpy(np.stack(windows))

    def to(self, device: torch.device | str) -> "Videos":
        """Return the videos with all frames on a device."""
        if isinstance(self.frames, Tensor):
            return replace(self, frames=self.frames.to(device))
        logger.info("decoding %d frames of %s", len(self.frames), self.name)
        table = torch.empty((len(self.frames), self.size, self.size, 3), dtype=torch.uint8, device=device)
        block = max(1, BLOCK_BYTES // int(np.prod(self.frames.shape[1:])))
        for start in range(0, len(table), block):
            part = resize_frames(self.frames[start : start + block], self.size)
            table[start : start + len(part)] = torch.from_numpy(part)
        return replace(self, frames=table)

    def windows(self, length: int) -> VideoWindows:
        """Return all windows of `length` frames; the frames must be on a device, see `to`."""
        assert isinstance(self.frames, Tensor)
        starts = torch.from_numpy(self.find_windows(length)).to(self.frames.device)
        return VideoWindows(self.frames, starts, length)

    def increment_std(self) -> float:
        """Measure the root mean square change of a pixel over one frame, in pixels from -1 to 1."""
        change = float(self._sample.double().diff(dim=1).square().mean().sqrt()) / 127.5
        if change == 0:
            raise DemoError(f"{self.name}: nothing moves in {len(self._sample)} windows of its videos")
        return change


def open_videos(path: Path | str, *, size: int) -> Videos:
    """Open a store with videos in `data/img`; nothing is decoded yet.

    Frames are resized to `size` × `size`; the aspect ratio is not kept.
    """
    ends, arrays = open_source(path).open_episodes([VIDEO_KEY])
    images = LazyFrames(arrays[0], int(ends[-1]))
    check_frames(images, VIDEO_KEY)
    arrays[0].check_parts(len(images))
    return Videos(images, ends, size, str(path))
