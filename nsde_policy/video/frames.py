"""Frames of a store of videos: read window by window, or all at once onto a device."""

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


def read_windows(frames: LazyFrames, starts: Ints, *, length: int, stride: int, size: int) -> Tensor:
    """Decode windows from their first rows, (n, length, size, size, 3) uint8."""
    out = np.empty((len(starts), length, size, size, 3), np.uint8)
    for window, start in zip(out, starts.tolist(), strict=True):
        rows = frames[start : start + stride * (length - 1) + 1]
        window[:] = resize_frames(rows[::stride], size)
    return torch.from_numpy(out)


def load_frames(frames: LazyFrames, size: int, device: torch.device, name: str) -> Tensor:
    """Return all frames on a device, (rows, size, size, 3); they are decoded and copied block by block.

    Raises:
        DemoError: If they would take more than half of the device's memory.
    """
    needed, limit = len(frames) * size * size * 3, _measure_memory(device) // 2
    if needed > limit:
        raise DemoError(
            f"{name}: the frames take {needed / 1e9:.1f} GB, at most {limit / 1e9:.1f} GB fit on the device "
            f"{device}: choose a smaller --size, or write fewer frames into the store"
        )
    logger.info("decoding %d frames of %s", len(frames), name)
    table = torch.empty((len(frames), size, size, 3), dtype=torch.uint8, device=device)
    block = max(1, BLOCK_BYTES // int(np.prod(frames.shape[1:])))
    for start in range(0, len(frames), block):
        part = resize_frames(frames[start : start + block], size)
        table[start : start + len(part)] = torch.from_numpy(part)
    return table


def _measure_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or all bytes of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
