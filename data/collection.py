"""Collection of demonstrations: a crash-safe store with information about each episode and its provenance.

A store can only be continued with the settings it was started with, so it never mixes two kinds of
demonstrations.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .types import Episode
from .zarr_store.store import Store
from .zarr_store.writer import INFO_PREFIX, DemoWriter, LazyRows

_UNKNOWN = -1
"""Stored success of an episode whose environment does not say."""


@dataclass(frozen=True)
class EpisodeInfo:
    """What a collection stores about an episode, in `meta/episode_<field>`."""

    seed: int
    success: bool | None
    """None if the environment does not say."""
    score: float
    """See `Outcome.score` of the task."""


class Collection(DemoWriter):
    """Writer of a store that knows how each of its episodes ended; one process at a time.

        with Collection(path, resume=True, rate_hz=10) as collection:
            collection.add(Episode(obs, act), EpisodeInfo(seed, success=True, score=1.0))
            collection.undo()

    An episode is on disk when `add` returns.
    """

    @property
    def episodes(self) -> tuple[EpisodeInfo, ...]:
        """Information about all episodes, in recording order."""
        return tuple(self._episodes)

    def add(self, episode: Episode, info: EpisodeInfo, images: Mapping[str, LazyRows] | None = None) -> None:
        """Write an episode to disk, with camera frames by name if there are `images`."""
        values = {
            "seed": info.seed,
            "success": self._encode_success(info.success),
            "score": float(info.score),
        }
        self.append(episode, images, info=values)
        self._episodes.append(info)

    def undo(self) -> EpisodeInfo:
        """Remove the last episode and return its information."""
        before = self._episodes
        self.drop_last()
        return before[-1]

    def _encode_success(self, success: bool | None) -> bool | np.int8:
        """Return a success in the type of the store, the type of its first episode: bool if known."""
        stored = self._arrays.get(f"{INFO_PREFIX}success")
        is_known = success is not None if stored is None else stored.dtype == bool
        return bool(success) if is_known else np.int8(_UNKNOWN if success is None else success)

    def _load(self) -> None:
        super()._load()
        self._episodes: list[EpisodeInfo] = []
        if not len(self):
            return
        with Store(self.path) as store:
            info = store.read_info()
        columns = (info[f"episode_{name}"].tolist() for name in ("seed", "success", "score"))
        for seed, success, score in zip(*columns, strict=True):
            outcome = None if success == _UNKNOWN else bool(success)
            self._episodes.append(EpisodeInfo(seed, outcome, score))
