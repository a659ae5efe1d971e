"""Camera frames in videos, decoded on demand."""

import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsde_policy.data.frames import Bytes
from nsde_policy.data.source import SourceArray
from nsde_policy.data.video_files import open_video
from nsde_policy.errors import DemoError

CACHE_BYTES = 128 * 2**20
"""Decoded frames that each camera keeps in memory for the next access."""
SEEK_SECONDS = 2.0
"""Frames that are at most this far ahead are reached by decoding; others by jumping to a key frame."""


class Clip(NamedTuple):
    """Part of a video that holds the frames of an episode."""

    path: Path
    start: float
    """Time of its first frame in seconds after the first frame of the video."""
    frames: int
    """Number of its frames."""


class VideoArray(SourceArray):
    """Frames of clips at a constant rate, (frames, height, width, 3) uint8, in the order of the clips.

    Consecutive frames are decoded in one go, and kept in a cache of bounded size.

    Args:
        name: Name of the camera.
        clips: Clips of all episodes.
        shape: Shape of a frame, (height, width, 3).
        rate_hz: Frames per second.
        check: Called with the number of a clip before its frames are read.
    """

    def __init__(
        self,
        name: str,
        clips: Sequence[Clip],
        shape: tuple[int, ...],
        rate_hz: float,
        check: Callable[[int], None] = lambda clip: None,
    ) -> None:
        self.name, self._clips, self._rate, self._check = name, clips, rate_hz, check
        self._ends = np.cumsum([clip.frames for clip in clips])
        self.shape, self.dtype = (int(self._ends[-1]), *shape), np.dtype(np.uint8)
        self._cache: OrderedDict[int, Bytes] = OrderedDict()
        self._checked = -1
        self._playing: tuple[Path, Generator[Bytes | None, float, None]] | None = None

    def read(self, start: int, stop: int) -> Bytes:
        """Decode the frames `start` to `stop`, or take them from the cache."""
        frames = np.empty((stop - start, *self.shape[1:]), np.uint8)
        for frame in range(start, stop):
            if frame not in self._cache:
                self._cache[frame] = self._decode(frame)
            self._cache.move_to_end(frame)
            frames[frame - start] = self._cache[frame]
            while len(self._cache) * math.prod(self.shape[1:]) > CACHE_BYTES:
                self._cache.popitem(last=False)
        return frames

    def find_faults(self, frames: int) -> Iterator[str]:
        """Describe missing videos of the first frames."""
        count = int(np.searchsorted(self._ends, frames)) + 1
        for path in dict.fromkeys(clip.path for clip in self._clips[:count]):
            if not path.is_file():
                yield f"{self.name}: the video {path} is missing"

    def _decode(self, frame: int) -> Bytes:
        """Decode one frame; the video stays open for the frames that follow."""
        number = int(np.searchsorted(self._ends, frame, side="right"))
        clip = self._clips[number]
        step = frame - int(self._ends[number]) + clip.frames
        if number != self._checked:
            self._check(number)
            self._checked = number
        if self._playing is None or self._playing[0] != clip.path:
            self._playing = clip.path, play(clip.path, self._rate)
            next(self._playing[1])
        try:
            picture = self._playing[1].send(clip.start + step / self._rate)
        except BaseException:
            self._playing = None
            raise
        assert picture is not None
        if picture.shape != self.shape[1:]:
            raise DemoError(
                f"{clip.path} has frames of {picture.shape[1]} × {picture.shape[0]} pixels, expected "
                f"{self.shape[2]} × {self.shape[1]} of {self.name}"
            )
        return picture


def play(path: Path, rate_hz: float) -> Generator[Bytes | None, float, None]:
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
