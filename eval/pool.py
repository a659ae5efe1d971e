"""Many episodes, one seed each, on as many processes as asked; results come in the order of the seeds."""

import itertools
import multiprocessing
import signal
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
    _check(workers, batch)
    crew = Crew(path, config, device, min(batch, len(seeds)), traced=False)
    for result, _ in crew.play(seeds, workers=min(workers, -(-len(seeds) // batch))):
        yield result


def record(
    path: Path | None,
    seeds: Iterable[int],
    config: RolloutConfig,
    *,
    workers: int = 1,
    device: str = "cpu",
    batch: int = 1,
) -> Iterator[tuple[EpisodeResult, Trace]]:
    """The same, and all that happened in each episode; the seeds may have no end."""
    _check(workers, batch)
    for result, trace in Crew(path, config, device, batch, traced=True).play(seeds, workers=workers):
        assert trace is not None
        yield result, trace


def _check(workers: int, batch: int) -> None:
    if workers < 1 or batch < 1:
        raise ConfigError(f"workers and batch must be at least 1, got {workers} and {batch}")


@dataclass(frozen=True)
class Crew:
    """Who plays, and what: everything a process needs to know."""

    path: Path | None
    config: RolloutConfig
    device: str
    batch: int
    traced: bool

    def play(self, seeds: Iterable[int], *, workers: int) -> Iterator[Played]:
        """Play seeds in their order, here or in processes, never far ahead of who takes the results."""
        rest = iter(seeds)
        shards = iter(lambda: list(itertools.islice(rest, self.batch)), [])
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asked for the work
    torch.set_num_threads(1)
    _crew, _player = crew, Player(crew.path, crew.config, device=crew.device, batch=crew.batch)


def _play_in_worker(seeds: Sequence[int]) -> list[Played]:
    assert _crew is not None
    assert _player is not None
    return _player.play_all(seeds, traced=_crew.traced)
