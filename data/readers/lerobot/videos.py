"""Camera frames in videos, decoded on demand."""

import math
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsde_policy.errors import DemoError, NsdePolicyError

from ...frames import Bytes
from ...source import SourceArray
from ...types import is_same_rate
from ...video_files import open_video, read_length

CACHE_BYTES = 128 * 2**20
"""Decoded frames that each camera keeps in memory for the next access."""
ROUNDING = 0.05
"""How early a frame of a camera with its own rate may be, in frames: time stamps are rounded."""
SEEK_SECONDS = 2.0
"""Frames that are at most this far ahead are reached by decoding; others by jumping to a key frame."""


class VideoSpan(NamedTuple):
    """Part of a video with an episode, in seconds."""

    path: Path
    start: float
    previous: float
    """End of the episode before it in the video, 0 if it is the first."""
    end: float
    """End of the last episode in the video."""


class VideoPlayer:
    """Decodes frames of videos, consecutive ones in one go, with a bounded cache.

    A camera may have another rate than the data, which its `first` video records: each row takes the newest
    frame, never one of its future.
    """

    def __init__(self, shape: tuple[int, ...], rate_hz: float, first: Path) -> None:
        self.shape, self.rate_hz, self.camera_hz = shape, rate_hz, rate_hz
        self.read_length = cache(read_length)
        with suppress(NsdePolicyError):  # damage is reported when frames are read
            _, camera_hz = self.read_length(first)
            if camera_hz and not is_same_rate(camera_hz, rate_hz):
                self.camera_hz = camera_hz
        is_same = self.camera_hz == rate_hz
        self._early = (0.5 if is_same else ROUNDING) / max(rate_hz, self.camera_hz)
        self._late = 0.5 / rate_hz if is_same else 1 / self.camera_hz + self._early
        self._playing: tuple[Path, Generator[Bytes | None, float, None]] | None = None
        self.get_frame = lru_cache(CACHE_BYTES // math.prod(shape))(self._decode)

    def _decode(self, path: Path, time: float) -> Bytes:
        """Decode a frame of a video; the video stays open for the frames that follow."""
        if self._playing is None or self._playing[0] != path:
            self._playing = path, _play_video(path, self._early, self._late)
            next(self._playing[1])
        try:
            picture = self._playing[1].send(time)
        except BaseException:
            self._playing = None
            raise
        assert picture is not None
        if picture.shape != self.shape:
            raise DemoError(f"{path} has frames of shape {picture.shape}, expected {self.shape}")
        return picture


class Clip(SourceArray):
    """Frames of an episode in a video."""

    def __init__(self, player: VideoPlayer, span: VideoSpan, frames: int) -> None:
        self.name, self._player, self._span = str(span.path), player, span
        self.shape, self.dtype = (frames, *player.shape), np.dtype(np.uint8)

    def find_faults(self, frames: int, start: int = 0) -> Iterator[str]:
        """Compare the frames of the episode and of the video; missing videos are faults too."""
        path, begin, previous, end = self._span
        if not path.exists():
            yield f"the video {path} is missing"
            return
        rate_hz, camera_hz = self._player.rate_hz, self._player.camera_hz
        rounding = 0.5 / rate_hz if camera_hz == rate_hz else 1.01 / min(rate_hz, camera_hz)
        if not begin >= previous - rounding:
            yield f"an episode begins at {begin:.3f} s in {path}, where another one ends at {previous:.3f} s"
            return
        try:
            frames, own_hz = self._player.read_length(path)
        except DemoError as error:
            yield str(error)
            return
        counts = [end * camera_hz, end * own_hz]  # 30 frames per second may be 29.97
        if not min(abs(frames - count) for count in counts) < 0.9:  # a slow camera may miss half a frame
            expected = f"its episodes have {counts[0]:.0f}"
            yield f"{path} has {frames} frames, but {expected}: it is another video, or frames are missing"

    def read(self, start: int, stop: int) -> Bytes:
        """Decode the frames `start` to `stop`, or take them from the cache."""
        times = [self._span.start + row / self._player.rate_hz for row in range(start, stop)]
        return np.stack([self._player.get_frame(self._span.path, time) for time in times])


def _play_video(path: Path, early: float, late: float) -> Generator[Bytes | None, float, None]:
    """Decode the newest frames of a video, (height, width, 3), at the times in seconds that are sent.

    A frame may be `early` by some seconds, or `late`: the time that is sent is later than its own.
    """
    with open_video(path) as (container, stream):
        start = float((stream.start_time or 0) * stream.time_base)
        decoded, frame = container.decode(stream), None
        following = next(decoded, None)
        instant = yield None
        while True:
            is_past = frame is not None and instant + early < frame.time - start
            if is_past or (following and following.time - start + SEEK_SECONDS < instant):
                container.seek(int((start + instant + early) / stream.time_base), stream=stream)
                decoded, frame = container.decode(stream), None
                following = next(decoded, None)
            while following and following.time - start <= instant + early:
                frame, following = following, next(decoded, None)
            if frame is None or frame.is_corrupt or frame.time - start < instant - late:
                what = "is damaged" if following or (frame and frame.is_corrupt) else "is too short"
                raise DemoError(f"{path} {what}: it has no frame at {instant:.3f} s")
            instant = yield frame.to_ndarray(format="rgb24")
