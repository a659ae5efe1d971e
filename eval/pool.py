"""Many episodes, one per seed, on several processes; results come in the order of the seeds."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.errors import EnvError
from nsde_policy.eval.episode import EpisodeResult, Trace
from nsde_policy.eval.expert import ExpertPlayer
from nsde_policy.eval.ray_pool import open_pool
from nsde_policy.eval.rollout import Player, RolloutConfig
from nsde_policy.files import replace_file
from nsde_policy.inference.torch_threads import use_threads
from nsde_policy.run_directory import RunDirectory

AHEAD = 4
"""Shards of seeds queued for each process before their results are needed."""
GPU_SHARE = 0.25
"""Share of a GPU that a task on a Ray cluster asks for: environments leave it idle most of the time."""


EpisodePlayer = Player | ExpertPlayer
"""What a process of a pool plays episodes with."""


@dataclass(frozen=True)
class RolloutPool(BaseConfig):
    """Processes that play episodes; on another device than the CPU, one process plays them side by side."""

    path: Path | None
    """Run directory; None for the policy shipped in the package."""
    config: RolloutConfig
    workers: Count = 1
    device: str = "cpu"
    batch: Count = 1
    """Episodes that a process plays side by side."""
    expert: str | None = None
    """Scripted expert, `module:Class`, that plays instead of a policy."""
    ray: str | None = None
    """Address of a Ray cluster that plays instead of this machine, see `open_pool`."""

    def evaluate(self, seeds: Iterable[int], *, traced: bool = False) -> Iterator[EpisodeResult]:
        """Play one episode per seed; the seeds may be endless. Traces stay empty unless `traced`."""
        shards_left = -(-len(seeds) // self.batch) if isinstance(seeds, Sized) else self.workers
        workers = min(self.workers, max(shards_left, 1))
        rest = iter(seeds)
        shards = iter(lambda: list(itertools.islice(rest, self.batch)), [])
        if workers == 1 and self.ray is None:
            player = self.make_player()
            for shard in shards:
                with use_threads(1):
                    played = _play(player, shard, traced)
                yield from played
            return
        yield from self._play_in_processes(shards, workers, traced)

    def _play_in_processes(
        self, shards: Iterable[list[int]], workers: int, traced: bool
    ) -> Iterator[EpisodeResult]:
        queue: deque[Future[list[EpisodeResult]]] = deque()
        try:
            files = {} if self.ray is None or self.path is None else RunDirectory(self.path).pack()
            gpus = 0.0 if self.device == "cpu" else GPU_SHARE
            with open_pool(workers, _start_worker, self, files, ray=self.ray, gpus=gpus) as pool:
                for shard in shards:
                    queue.append(pool.submit(_play_in_worker, shard, traced))
                    if len(queue) > AHEAD * pool.capacity:
                        yield from queue.popleft().result()
                while queue:
                    yield from queue.popleft().result()
        except BrokenExecutor as error:
            raise EnvError(
                "a process that plays episodes has died, perhaps in a library of the environment: run with "
                "--workers 1, without --ray, to see its message"
            ) from error

    def make_player(self) -> EpisodePlayer:
        """Load the policy or the expert and make its environments."""
        if self.expert is not None:
            return ExpertPlayer(self.expert, self.config)
        return Player(self.path, self.config, device=self.device, batch=self.batch)


def _play(player: EpisodePlayer, seeds: Sequence[int], traced: bool) -> list[EpisodeResult]:
    results = player.play_batch(seeds)
    return results if traced else [replace(result, trace=Trace()) for result in results]


_pool: RolloutPool | None = None
_files: Mapping[str, bytes] = {}
_player: EpisodePlayer | None = None


def _start_worker(pool: RolloutPool, files: Mapping[str, bytes]) -> None:
    """Keep what a player is made from; a process of a Ray cluster may have played for another pool."""
    global _pool, _files, _player
    torch.set_num_threads(1)
    _pool, _files, _player = pool, files, None


def _play_in_worker(seeds: Sequence[int], traced: bool) -> list[EpisodeResult]:
    global _player
    if _player is None:  # not in `_start_worker`, whose errors would restart the process for ever
        assert _pool is not None
        with TemporaryDirectory() as folder:
            for name, content in _files.items():
                replace_file(Path(folder, name), content)
            _player = (replace(_pool, path=Path(folder)) if _files else _pool).make_player()
    return _play(_player, seeds, traced)
