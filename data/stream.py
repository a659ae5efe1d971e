"""Stores larger than memory: a sample of their episodes, and all of them a few at a time."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsde_policy.data.source import Source, find_span
from nsde_policy.data.types import Demonstrations, Ints
from nsde_policy.files import get_max_unpacked

COPIES = 16
"""Training takes at most this many times the memory of the numbers that it is given."""
DEFAULT_WINDOW_MB = 512
"""Memory for training data if a store does not fit and the settings name no window."""
CAMERA_BYTES = 96 * 96 * 3
"""Typical size of a camera frame in training."""
SAMPLE_SHARE, FEWEST_SAMPLED, MOST_SAMPLED = 0.25, 3, 1000
"""Share of the window that a sample may take, and the number of its episodes."""


@dataclass(frozen=True, eq=False)
class EpisodeStream:
    """Episodes of a store that are loaded some at a time.

    A sample stands for all of them where demonstrations have to be in memory together: ranges, typical
    increments, held-out episodes, plan selection, calibration.
    """

    episode_ends: Ints
    """One past the last frame of each episode, (episodes,)."""
    window_mb: int
    """Memory for training data."""
    sample: tuple[int, ...]
    """Episodes of the sample, increasing; the same ones for the same store and window."""
    read: Callable[[range], Demonstrations]
    """Loads consecutive episodes."""
    frame_bytes: int = 0
    """Typical size of the camera frames of one moment."""
    left_out: tuple[int, ...] = ()
    """Episodes that are held out."""

    def load(self, episodes: Sequence[int]) -> Demonstrations:
        """Load episodes, in increasing order."""
        first, *others = map(self.read, find_runs(episodes))
        return first.append(*others) if others else first

    def find_spans(self, episodes: Sequence[int]) -> list[tuple[int, int]]:
        """Return the spans of frames, first and one past the last, that hold episodes in increasing order."""
        return [find_span(self.episode_ends, run) for run in find_runs(episodes)]

    def count_frames(self) -> Ints:
        """Return the number of frames of each episode, 0 for those left out, (episodes,)."""
        lengths = np.diff(self.episode_ends, prepend=0)
        lengths[list(self.left_out)] = 0
        return lengths

    def select(self, places: Sequence[int]) -> "EpisodeStream":
        """Keep some episodes of the sample, and leave out the others."""
        sample = tuple(self.sample[i] for i in places)
        return replace(self, sample=sample, left_out=(*self.left_out, *{*self.sample} - {*sample}))


def open_stream(
    source: Source,
    names: Sequence[str],
    read: Callable[[range], Demonstrations],
    *,
    window_mb: int,
    cameras: int,
    episodes: int,
) -> EpisodeStream | None:
    """Return the episodes of a source that is larger than memory, all or the first ones; None if it fits.

    `names` are its arrays of numbers. It fits if training takes less than the window; without a window, less
    than the memory of this machine, and otherwise `DEFAULT_WINDOW_MB` are used.
    """
    ends, arrays = source.open_episodes(names)
    if episodes > len(ends):
        return None  # loading them will say so
    ends, pictures = ends[: episodes or None], cameras * CAMERA_BYTES
    frames, numbers = int(ends[-1]), sum(array.width for array in arrays) * 4 * COPIES
    is_readable = max(array.width * array.dtype.itemsize for array in arrays) * frames <= get_max_unpacked()
    if is_readable and frames * (numbers + pictures) <= (window_mb * 2**20 or measure_memory()):
        return None
    for array in arrays:
        array.check_parts(frames)
    window_mb = window_mb or DEFAULT_WINDOW_MB
    order = np.random.default_rng(0).permutation(len(ends))[:MOST_SAMPLED]
    sizes = np.cumsum(np.diff(ends, prepend=0)[order]) * max(numbers, pictures)
    sample = order[: max(FEWEST_SAMPLED, int((sizes <= SAMPLE_SHARE * window_mb * 2**20).sum()))]
    return EpisodeStream(ends, window_mb, tuple(sorted(sample.tolist())), read, pictures)


def find_runs(episodes: Sequence[int] | Ints) -> list[range]:
    """Return the runs of consecutive numbers in increasing ones."""
    runs = np.split(np.asarray(episodes), np.flatnonzero(np.diff(episodes) > 1) + 1)
    return [range(int(run[0]), int(run[-1]) + 1) for run in runs]


def measure_memory() -> float:
    """Return the memory of this machine in bytes; infinity if unknown."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
