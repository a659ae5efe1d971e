"""Camera frames in videos, decoded on demand."""

import math
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path

import numpy as np

from nsde_policy.data.frames import Bytes
from nsde_policy.data.source import SourceArray
from nsde_policy.data.video_files import open_video
from nsde_policy.errors import DemoError

CACHE_BYTES = 128 * 2**20
"""Decoded frames that each camera keeps in memory for the next access."""
SEEK_SECONDS = 2.0
"""Frames that are at most this far ahead are reached by decoding; others by jumping to a key frame."""


class VideoPlayer:
    """Decodes frames of videos at a constant rate, consecutive ones in one go, with a bounded cache."""

    def __init__(self, shape: tuple[int, ...], rate_hz: float) -> None:
        self.shape, self._rate = shape, rate_hz
        self._playing: tuple[Path, Generator[Bytes | None, float, None]] | None = None
        self.get_frame = lru_cache(CACHE_BYTES // math.prod(shape))(self._decode)

    def _decode(self, path: Path, row: int) -> Bytes:
        """Decode a frame of a video; the video stays open for the frames that follow."""
        if self._playing is None or self._playing[0] != path:
            self._playing = path, _play_video(path, self._rate)
            next(self._playing[1])
        try:
            picture = self._playing[1].send(row / self._rate)
        except BaseException:
            self._playing = None
            raise
        assert picture is not None
        if picture.shape != self.shape:
            raise DemoError(f"{path} has frames of shape {picture.shape}, expected {self.shape}")
        return picture


class Clip(SourceArray):
    """Frames of an episode in a video."""

    def __init__(self, player: VideoPlayer, path: Path, start: int, frames: int) -> None:
        self.name, self._player, self._path, self._start = str(path), player, path, start
        self.shape, self.dtype = (frames, *player.shape), np.dtype(np.uint8)

    def read(self, start: int, stop: int) -> Bytes:
        """Decode the frames `start` to `stop`, or take them from the cache."""
        rows = range(self._start + start, self._start + stop)
        return np.stack([self._player.get_frame(self._path, row) for row in rows])


def _play_video(path: Path, rate_hz: float) -> Generator[Bytes | None, float, None]:
    """Decode frames of a video, (height, width, 3), at the times in seconds that are sent."""
    half = 0.5 / rate_hz
    with open_video(path) as (container, stream):
        start = float((stream.start_time or 0) * stream.time_base)
        decoded, now = container.decode(stream), -2 * half
        wanted = yield None
        while True:
            if not now + half < wanted < now + SEEK_SECONDS:
                container.seek(int((start + wanted + half) / stream.time_base), stream=stream)
                decoded = container.decode(stream)
            for frame in decoded:
                now = frame.time - start
                if now > wanted - half:
                    break
            else:
                raise DemoError(f"{path} is too short: it has no frame at {wanted:.3f} s")
            if now >= wanted + half or frame.is_corrupt:
                raise DemoError(f"{path} is damaged: it has no frame at {wanted:.3f} s")
            wanted = yield frame.to_ndarray(format="rgb24")
