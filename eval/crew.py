"""Many episodes, one seed each, on as many processes as asked; results come in the order of the seeds."""

import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult
from pathlib import Path

import torch

from nsde_policy.errors import ConfigError
from nsde_policy.eval.rollout import EpisodeResult, Played, Player, RolloutConfig, Trace, one_thread

AHEAD = 4
"""Shards of seeds given to each process before their results are wanted."""


def evaluate(
    path: Path | None,
    seeds: Sequence[int],
    config: RolloutConfig,
    *,
    workers: int = 1,
    device: str = "cpu",
    batch: int = 1,
) -> Iterator[EpisodeResult]:
    """Play one episode per seed, in their order; `path` is a run, or None for the shipped policy.

    On a CPU, processes share the seeds. Elsewhere one process plays `batch` episodes side by side.
    """
    if workers < 1 or batch < 1:
        raise ConfigError(f"workers and batch must be at least 1, got {workers} and {batch}")
    crew = Crew(path, config, device, min(batch, len(seeds)), traced=False)
    shards = [seeds[start : start + batch] for start in range(0, len(seeds), batch)]
    for result, _ in crew.play(shards, workers=min(workers, len(shards))):
        yield result


def record(
    path: Path | None, seeds: Iterable[int], config: RolloutConfig, *, workers: int = 1
) -> Iterator[tuple[EpisodeResult, Trace]]:
    """Play one episode per seed, in their order, and tell all that happened; seeds may have no end."""
    crew = Crew(path, config, "cpu", 1, traced=True)
    for result, trace in crew.play(([seed] for seed in seeds), workers=workers):
        assert trace is not None
        yield result, trace


@dataclass(frozen=True)
class Crew:
    """Who plays, and what: everything a process needs to know."""

    path: Path | None
    config: RolloutConfig
    device: str
    batch: int
    traced: bool

    def play(self, shards: Iterable[Sequence[int]], *, workers: int) -> Iterator[Played]:
        """Play shards of seeds in their order, here or in processes, never far ahead of who takes them."""
        if workers == 1:
            player = Player(self.path, self.config, device=self.device, batch=self.batch)
            for shard in shards:
                with one_thread():
                    played = player.play_all(shard, traced=self.traced)
                yield from played
            return
        context = multiprocessing.get_context("spawn")
        with context.Pool(workers, _start_worker, (self,)) as pool:
            under_way: deque[AsyncResult[list[Played]]] = deque()
            for shard in shards:
                under_way.append(pool.apply_async(_play_in_worker, (shard,)))
                if len(under_way) > AHEAD * workers:
                    yield from under_way.popleft().get()
            while under_way:
                yield from under_way.popleft().get()


_crew: Crew | None = None
_player: Player | None = None


def _start_worker(crew: Crew) -> None:
    global _crew, _player
    torch.set_num_threads(1)
    _crew, _player = crew, Player(crew.path, crew.config, device=crew.device, batch=crew.batch)


def _play_in_worker(seeds: Sequence[int]) -> list[Played]:
    assert _crew is not None
    assert _player is not None
    return _player.play_all(seeds, traced=_crew.traced)
