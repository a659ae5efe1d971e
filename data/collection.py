"""Collection of demonstrations: a crash-safe store with information about each episode and its provenance.

A store can only be continued with the settings it was started with, so it never mixes two kinds of
demonstrations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from nsde_policy.data.types import Episode
from nsde_policy.data.zarr_store.writer import DemoWriter
from nsde_policy.errors import DamagedStoreError


@dataclass(frozen=True)
class Provenance:
    """Origin of demonstrations."""

    by: str
    """Demonstrator: "policy" or "teleoperation"."""
    settings: Mapping[str, Any]
    """JSON settings that determine the episodes; a store is only continued with equal ones."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON values, stored with the date each time a store is continued."""


@dataclass(frozen=True)
class EpisodeInfo:
    """What a collection stores about an episode, in `meta/episode_<field>`."""

    seed: int
    """Seed of the initial state."""
    success: bool
    max_reward: float


class Collection:
    """A store of demonstrations that is being collected, by one process at a time.

        with Collection.open(path, provenance, rate_hz=10) as collection:
            collection.add(Episode(obs, act), EpisodeInfo(seed, success=True, max_reward=1.0))
            collection.undo()

    An episode is on disk when `add` returns.
    """

    def __init__(self, writer: DemoWriter) -> None:
        self._writer = writer
        self._episodes: list[EpisodeInfo] = []
        if not len(writer):
            return
        names = [each.name for each in fields(EpisodeInfo)]
        stored = writer.read_info()
        if not stored.keys() >= {*names}:
            raise DamagedStoreError(
                f"{writer.path} has lost its episode information (meta/episode_seed, …); start a new store"
            )
        for seed, success, reward in zip(*(stored[name] for name in names), strict=True):
            self._episodes.append(EpisodeInfo(int(seed), bool(success), float(reward)))

    @classmethod
    def open(
        cls, path: Path, provenance: Provenance, *, rate_hz: float | None = None, angles: Sequence[int] = ()
    ) -> Self:
        """Start a collection or continue one; `rate_hz` and `angles` are as for `DemoWriter`."""
        writer = DemoWriter(
            path,
            rate_hz=rate_hz,
            angles=angles,
            provenance=provenance.notes,
            made_with={"by": provenance.by, **provenance.settings},
        )
        try:
            return cls(writer)
        except BaseException:
            writer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock on the store; all episodes are already on disk."""
        self._writer.close()

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self._writer.path

    @property
    def episodes(self) -> tuple[EpisodeInfo, ...]:
        """Information about all episodes, in recording order."""
        return tuple(self._episodes)

    def add(self, episode: Episode, info: EpisodeInfo) -> None:
        """Write an episode to disk."""
        self._writer.append(episode, info={**asdict(info), "max_reward": float(info.max_reward)})
        self._episodes.append(info)

    def undo(self) -> EpisodeInfo:
        """Remove the last episode and return its information."""
        self._writer.drop_last()
        return self._episodes.pop()
