"""Where the frames of videos are kept: in a store, or on the device."""

import logging
import os

import numpy as np
import torch
from torch import Tensor

from nsde_policy.data.frames import BLOCK_BYTES, resize_frames
from nsde_policy.data.images import LazyFrames
from nsde_policy.data.types import Ints
from nsde_policy.errors import DemoError

logger = logging.getLogger(__name__)

SAME_READ = 32
"""Rows of a store that are at most this far apart are decoded together."""


class VideoFrames:
    """Frames of all videos, resized when they are needed, and kept where they were needed last."""

    def __init__(self, frames: LazyFrames | Tensor, size: int, name: str) -> None:
        self._frames, self.size, self.name = frames, size, name
        self._table: Tensor | None = frames if isinstance(frames, Tensor) else None

    def __len__(self) -> int:
        return len(self._frames)

    def read(self, rows: Ints) -> Tensor:
        """Return frames by their rows, in any order, (n, size, size, 3) uint8."""
        if self._table is not None:
            return self._table[torch.from_numpy(rows).to(self._table.device)].cpu()
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
        """Return all frames on a device; they are decoded and copied block by block.

        Raises:
            DemoError: If they would take more than half of the device's memory.
        """
        if self._table is None:
            assert isinstance(self._frames, LazyFrames)
            needed, limit = len(self) * self.size * self.size * 3, _measure_memory(device) // 2
            if needed > limit:
                raise DemoError(
                    f"{self.name}: the frames take {needed / 1e9:.1f} GB, at most {limit / 1e9:.1f} GB fit "
                    f"on the device {device}: choose a smaller --size, or write fewer frames into the store"
                )
            logger.info("decoding %d frames of %s", len(self), self.name)
            table = torch.empty((len(self), self.size, self.size, 3), dtype=torch.uint8, device=device)
            block = max(1, BLOCK_BYTES // int(np.prod(self._frames.shape[1:])))
            for start in range(0, len(self), block):
                part = resize_frames(self._frames[start : start + block], self.size)
                table[start : start + len(part)] = torch.from_numpy(part)
            self._table = table
        self._table = self._table.to(device)
        return self._table


def _measure_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or all bytes of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
