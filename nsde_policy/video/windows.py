"""Videos for training: windows of consecutive frames, drawn on the device."""

import hashlib
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsde_policy.data.frames import BLOCK_BYTES, check_frames, resize_frames
from nsde_policy.data.images import LazyFrames
from nsde_policy.data.readers import open_source
from nsde_policy.data.types import Ints
from nsde_policy.errors import ConfigError, DemoError
from nsde_policy.training.batches import BatchSource
from nsde_policy.video.base import VideoBatch, to_unit
from nsde_policy.video.config import VIDEO_KEY

logger = logging.getLogger(__name__)

SAMPLED_WINDOWS, SAMPLED_FRAMES = 64, 9
"""Windows that increments and the fingerprint are measured on, and most frames of one."""


class WindowTable(BatchSource[VideoBatch]):
    """Draws windows with replacement from frames (rows, size, size, 3) uint8 that are all on the device.

    A window begins at one of the rows `starts` and has `length` frames, `stride` rows apart.
    """

    def __init__(self, frames: Tensor, starts: Tensor, *, length: int, stride: int, batch_size: int) -> None:
        self._data = VideoBatch(frames)
        self._starts = starts
        self._batch_size = batch_size
        self._offsets = stride * torch.arange(length, device=frames.device)

    def draw(self, generator: torch.Generator) -> VideoBatch:
        """Draw `batch_size` windows."""
        chosen = torch.randint(
            len(self._starts), (self._batch_size,), generator=generator, device=generator.device
        )
        return self._data[self._starts[chosen][:, None] + self._offsets]


@dataclass(frozen=True, eq=False)
class Videos:
    """A set of videos; parts of it share its frames."""

    frames: LazyFrames | Tensor
    """Frames of the whole set, in a store or, (rows, size, size, 3) uint8, on a device."""
    episode_ends: Ints
    """One past the last row of each video of the whole set."""
    chosen: Ints
    """Indices of the videos of this part."""
    size: int
    """Height and width that frames of a store are resized to."""
    name: str
    """Where the videos came from."""
    stride: int = 1
    """Rows from one frame to the next."""

    @classmethod
    def from_tensor(cls, frames: Tensor, *, stride: int = 1, name: str = "memory") -> Self:
        """Use generated videos, (videos, T, size, size, 3) uint8, where they are."""
        n, length = frames.shape[:2]
        ends = length * np.arange(1, n + 1)
        return cls(frames.flatten(0, 1), ends, np.arange(n), frames.shape[2], name, stride)

    def __len__(self) -> int:
        """Return the number of videos."""
        return len(self.chosen)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the lengths of the videos and of a sample of the frames."""
        digest = hashlib.sha256(repr((self.stride, self.lengths.tolist())).encode())
        digest.update(self._sample.numpy().data)
        return digest.hexdigest()

    @cached_property
    def _sample(self) -> Tensor:
        """Read some windows, spread over all videos, (n, length, size, size, 3)."""
        length = int(np.clip(self.lengths.max(), 2, SAMPLED_FRAMES))
        found = self.find_windows(length)
        rng = np.random.default_rng(0)
        starts = rng.choice(found, min(len(found), SAMPLED_WINDOWS), replace=False)
        return self.read(np.sort(starts), length).frames

    @cached_property
    def lengths(self) -> Ints:
        """Frames of each video, after taking every `stride`-th."""
        rows = np.diff(self.episode_ends, prepend=0)[self.chosen]
        return -(-rows // self.stride)

    @property
    def left_out(self) -> tuple[int, ...]:
        """Indices of the videos of the whole set that are not in this part."""
        return tuple(np.setdiff1d(np.arange(len(self.episode_ends)), self.chosen).tolist())

    def select(self, chosen: Sequence[int] | Ints) -> "Videos":
        """Return some videos of the whole set by their indices."""
        return replace(self, chosen=np.asarray(chosen, np.int64))

    def head(self, count: int) -> "Videos":
        """Return the first `count` videos of the whole set as a set of their own."""
        ends = self.episode_ends[:count]
        return replace(self, episode_ends=ends, chosen=np.arange(len(ends)))

    @property
    def starts(self) -> Ints:
        """First row of each video."""
        return np.concatenate([np.zeros(1, np.int64), self.episode_ends[:-1]])[self.chosen]

    def find_windows(self, length: int) -> Ints:
        """Return the first row of every window of `length` frames inside one video, or raise `DemoError`."""
        ends = self.episode_ends[self.chosen]
        counts = np.maximum(ends - self.starts - self.stride * (length - 1), 0)
        before = np.cumsum(counts) - counts
        found = np.repeat(self.starts - before, counts) + np.arange(counts.sum())
        if not len(found):
            every = f" after taking every {self.stride}th frame" if self.stride > 1 else ""
            raise DemoError(
                f"{self.name}: the longest of {len(self)} videos has {self.lengths.max(initial=0)} "
                f"frames{every}, a window needs {length}; use longer videos, a smaller stride or a shorter "
                "window"
            )
        return found

    def read(self, starts: npt.ArrayLike, length: int) -> VideoBatch:
        """Read windows from their first rows, on the CPU; see `starts` and `find_windows`."""
        first = np.asarray(starts, np.int64)
        if isinstance(self.frames, LazyFrames):
            out = np.empty((len(first), length, self.size, self.size, 3), np.uint8)
            for window, start in zip(out, first.tolist(), strict=True):
                frames = self.frames[start : start + self.stride * (length - 1) + 1]
                window[:] = resize_frames(frames[:: self.stride], self.size)
            return VideoBatch(torch.from_numpy(out))
        rows = torch.from_numpy(first[:, None] + self.stride * np.arange(length))
        return VideoBatch(self.frames[rows.to(self.frames.device)].cpu())

    def to(self, device: torch.device | str) -> "Videos":
        """Return the videos with all frames on a device; raise `DemoError` if they do not fit."""
        device = torch.device(device)
        if isinstance(self.frames, LazyFrames):
            return replace(self, frames=_load_frames(self.frames, self.size, device, self.name))
        return replace(self, frames=self.frames.to(device))

    def source(self, length: int, batch_size: int) -> WindowTable:
        """Return a source of random windows of `length` frames; the frames must be on a device, see `to`."""
        assert isinstance(self.frames, Tensor)
        starts = torch.from_numpy(self.find_windows(length)).to(self.frames.device)
        return WindowTable(self.frames, starts, length=length, stride=self.stride, batch_size=batch_size)

    def hold_out(self, share: float) -> "Videos":
        """Return the videos to train on: all but a random share, at least one, and always the same ones."""
        if share == 0:
            return self
        if len(self) < 2:
            raise ConfigError(f"--validation needs at least 2 videos, {self.name} holds {len(self)}")
        count = min(max(round(share * len(self)), 1), len(self) - 1)
        order = np.random.default_rng(0).permutation(self.chosen)
        return self.select(np.sort(order[count:]))

    def increment_std(self) -> float:
        """Measure the root mean square change of a pixel over one frame; raise `DemoError` if it is 0."""
        change = float(to_unit(self._sample).diff(dim=1).double().square().mean().sqrt())
        if change == 0:
            raise DemoError(f"{self.name}: nothing moves in {len(self._sample)} windows of its videos")
        return change


def open_videos(path: Path | str, *, size: int, stride: int = 1) -> Videos:
    """Open a store with videos in `data/img`; nothing is decoded yet.

    Frames are resized to `size` × `size`; the aspect ratio is not kept. Windows use every `stride`-th frame
    and may start at any.
    """
    ends, arrays = open_source(path).open_episodes([VIDEO_KEY])
    count = int(ends[-1])
    images = LazyFrames(arrays[0], count)
    check_frames(images, VIDEO_KEY)
    arrays[0].check_parts(count)
    return Videos(images, ends, np.arange(len(ends)), size, str(path), stride)


def _load_frames(frames: LazyFrames, size: int, device: torch.device, name: str) -> Tensor:
    """Return all frames on a device, (rows, size, size, 3), if they take at most half of its memory."""
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


def _measure_memory(device: torch.device) -> float:
    """Return the free bytes of a GPU, or all bytes of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
