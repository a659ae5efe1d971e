"""Collection of demonstrations: a crash-safe store with information about each episode and its provenance.

A store can only be continued with the settings it was started with, so it never mixes two kinds of
demonstrations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

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


class Collection(DemoWriter):
    """Writer of a store that knows how each of its episodes ended; one process at a time.

        with Collection(path, provenance, rate_hz=10) as collection:
            collection.add(Episode(obs, act), EpisodeInfo(seed, success=True, max_reward=1.0))
            collection.undo()

    An episode is on disk when `add` returns.
    """

    def __init__(
        self, path: Path, provenance: Provenance, *, rate_hz: float | None = None, angles: Sequence[int] = ()
    ) -> None:
        """Start a collection or continue one; the arguments are those of `DemoWriter`."""
        made_with = {"by": provenance.by, **provenance.settings}
        super().__init__(
            path, rate_hz=rate_hz, angles=angles, provenance=provenance.notes, made_with=made_with
        )

    @property
    def episodes(self) -> tuple[EpisodeInfo, ...]:
        """Information about all episodes, in recording order."""
        return tuple(self._episodes)

    def add(self, episode: Episode, info: EpisodeInfo) -> None:
        """Write an episode to disk."""
        self.append(episode, info={**asdict(info), "max_reward": float(info.max_reward)})
        self._episodes.append(info)

    def undo(self) -> EpisodeInfo:
        """Remove the last episode and return its information."""
        before = self._episodes
        self.drop_last()
        return before[-1]

    def _load(self) -> None:
        super()._load()
        stored, names = self.read_info(), [each.name for each in fields(EpisodeInfo)]
        if len(self) and not stored.keys() >= {*names}:
            raise DamagedStoreError(
                f"{self.path} has lost its episode information (meta/episode_seed, …); start a new store"
            )
        rows = zip(*(stored[name].tolist() for name in names if stored), strict=True)
        self._episodes = [EpisodeInfo(*row) for row in rows]
