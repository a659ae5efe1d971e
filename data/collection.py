"""Collecting demonstrations: a store that grows by whole episodes, knows how they came about, and can go on.

Killed at any moment, it holds the episodes finished so far. What decides how episodes come about is kept with
them, and a store made otherwise is refused, so that one store never mixes two kinds of demonstrations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nsde_policy.data import PUSHT_ANGLES, DemoWriter, Episode
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.errors import DamagedStoreError
from nsde_policy.run_directory import find_versions

ABOUT = ("seed", "success", "max_reward")
"""What is noted about each episode, in `meta/episode_…`."""


@dataclass(frozen=True)
class Provenance:
    """Where demonstrations come from."""

    by: str
    """Who moves the agent: "policy" or "teleoperation"."""
    settings: Mapping[str, Any]
    """What decides how episodes come about, as JSON; a store is only continued with the same."""
    notes: Mapping[str, Any]
    """What else is worth knowing, as JSON: noted with the date and versions whenever collecting goes on."""


@dataclass(frozen=True)
class EpisodeInfo:
    """What is known about an episode of a collection."""

    seed: int
    """Of its start."""
    success: bool
    """Coverage above 0.95 at some moment."""
    max_reward: float
    """Largest clip(coverage / 0.95, 0, 1) along the way."""


class Collection:
    """A store of Push-T demonstrations being collected; whatever `add` returned from is on disk.

        with Collection.open(path, provenance) as collection:
            collection.add(Episode(obs, act), EpisodeInfo(seed, success=True, max_reward=1.0))
            collection.undo()

    One process at a time. The states are (agent x, y, block x, y, angle) at 10 Hz, as `train` expects them.
    """

    def __init__(self, writer: DemoWriter) -> None:
        self._writer = writer
        self._kept: list[EpisodeInfo] = []
        if not len(writer):
            return
        about = writer.about
        if not about.keys() >= {*ABOUT}:
            raise DamagedStoreError(f"{writer.path} has lost the notes about its episodes; begin a new store")
        for seed, success, reward in zip(*(about[name] for name in ABOUT), strict=True):
            self._kept.append(EpisodeInfo(int(seed), bool(success), float(reward)))

    @classmethod
    def open(cls, path: Path, provenance: Provenance) -> Self:
        """Begin a collection, or go on with one; what is none, or was made otherwise, is left untouched."""
        writer = DemoWriter(
            path,
            rate_hz=CONTROL_HZ,
            angles=PUSHT_ANGLES,
            provenance={**provenance.notes, "versions": find_versions()},
            made_with={"by": provenance.by, **provenance.settings},
        )
        try:
            return cls(writer)
        except BaseException:
            writer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write; every episode is on disk already."""
        self._writer.close()

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self._writer.path

    @property
    def episodes(self) -> tuple[EpisodeInfo, ...]:
        """All episodes in the store, in their order."""
        return tuple(self._kept)

    def add(self, episode: Episode, kept: EpisodeInfo) -> None:
        """Keep an episode; when this returns, it is on disk."""
        about = {"seed": kept.seed, "success": kept.success, "max_reward": float(kept.max_reward)}
        self._writer.append(episode, about=about)
        self._kept.append(kept)

    def undo(self) -> EpisodeInfo:
        """Drop the last episode, in one step; says which it was."""
        self._writer.drop_last()
        return self._kept.pop()
