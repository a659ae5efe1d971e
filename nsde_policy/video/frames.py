"""Where the frames of videos are kept: in a store, on the device, or in a temporary file."""

import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nsde_policy.data.frames import BLOCK_BYTES, FrameFile, resize_frames
from nsde_policy.data.images import LazyFrames
from nsde_policy.data.types import Ints

logger = logging.getLogger(__name__)

TABLE_BYTES = 2 * 2**30
"""Most bytes of frames that are kept in the memory of a CPU; a GPU may keep half of its free memory."""
SAME_READ = 32
"""Rows of a store that are at most this far apart are decoded together."""


class VideoFrames:
    """Frames of all videos, resized when they are needed, and kept where they were needed last."""

    def __init__(self, frames: LazyFrames | Tensor, size: int, name: str) -> None:
        self._frames, self.size, self.name = frames, size, name
        self._table: Tensor | None = frames if isinstance(frames, Tensor) else None
        self._file: FrameFile | None = None

    def __len__(self) -> int:
        return len(self._frames)

    def read(self, rows: Ints) -> Tensor:
        """Return frames by their rows, in any order, (n, size, size, 3) uint8."""
        if self._table is not None:
            return self._table[torch.from_numpy(rows).to(self._table.device)].cpu()
        if self._file is not None:
            return torch.from_numpy(self._file.read(rows)[0])
        assert isinstance(self._frames, LazyFrames)
        out = np.empty((len(rows), self.size, self.size, 3), np.uint8)
        gaps = np.diff(rows)
        for place in np.split(np.arange(len(rows)), np.flatnonzero((gaps < 1) | (gaps > SAME_READ)) + 1):
            if len(place):
                first = int(rows[place[0]])
                part = self._frames[first : int(rows[place[-1]]) + 1]
                out[place] = resize_frames(part[rows[place] - first], self.size)
        return torch.from_numpy(out)

    def load(self, device: torch.device) -> Tensor:
        """Return all frames on a device; they are decoded and copied block by block."""
        if self._table is None:
            assert isinstance(self._frames, LazyFrames)
            logger.info("decoding %d frames of %s", len(self), self.name)
            table = torch.empty((len(self), self.size, self.size, 3), dtype=torch.uint8, device=device)
            block = max(1, BLOCK_BYTES // int(np.prod(self._frames.shape[1:])))
            for start in range(0, len(self), block):
                part = resize_frames(self._frames[start : start + block], self.size)
                table[start : start + len(part)] = torch.from_numpy(part)
            self._table = table
        self._table = self._table.to(device)
        return self._table

    def open_file(self, folder: Path) -> FrameFile:
        """Return all frames in a temporary file, in which they can be read in any order."""
        if self._file is None:
            assert isinstance(self._frames, LazyFrames)
            logger.info("decoding %d frames of %s into a file in %s", len(self), self.name, folder)
            self._file = FrameFile([self._frames], len(self), size=self.size, folder=folder)
        return self._file

    def fits(self, device: torch.device) -> bool:
        """Return whether all frames are, or may be, kept on a device."""
        if self._table is not None:
            return True
        is_gpu = device.type == "cuda"
        limit = torch.cuda.mem_get_info(device)[0] // 2 if is_gpu else TABLE_BYTES
        return len(self) * self.size * self.size * 3 <= limit
