"""Roll out many episodes, one per seed, on several processes; results come in the order of the seeds."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from nsde_policy.bounds import Count
from nsde_policy.config import check_bounds
from nsde_policy.errors import EnvError
from nsde_policy.files import replace_file
from nsde_policy.policy.policy import Policy
from nsde_policy.run_directory import RunDirectory
from nsde_policy.torch_threads import use_threads

from .episode import EpisodeResult, Trace
from .executors import open_pool
from .expert import ExpertRunner
from .runner import EnvRunner, RolloutConfig

AHEAD = 4
"""Shards of seeds queued for each process before their results are needed."""
GPU_SHARE = 0.25
"""Fraction of a GPU that a task on a Ray cluster asks for: environments leave it idle most of the time."""

Runner = EnvRunner | ExpertRunner
"""What a process of a pool runs episodes with."""


@dataclass(frozen=True)
class RolloutPool:
    """Processes that run episodes; on another device than the CPU, one process runs them side by side."""

    policy: Policy | Path | None
    """Run directory, None for the shipped policy, or a loaded policy, which only this process uses."""
    config: RolloutConfig
    workers: Count = 1
    device: str = "cpu"
    batch: Count = 1
    """Episodes that a process runs side by side."""
    expert: str | None = None
    """Scripted expert, `module:Class`, that takes the place of the policy."""
    ray: str | None = None
    """Address of a Ray cluster that takes the place of this machine, see `open_pool`."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def run(self, seeds: Iterable[int], *, traced: bool = False) -> Iterator[EpisodeResult]:
        """Run one episode per seed; the seeds may be endless.

        Traces stay empty unless `traced`, and histories always do: those of cameras refer to the policy.
        """
        shards_left = -(-len(seeds) // self.batch) if isinstance(seeds, Sized) else self.workers
        workers = min(self.workers, max(shards_left, 1))
        rest = iter(seeds)
        shards = iter(lambda: list(itertools.islice(rest, self.batch)), [])
        if workers == 1 and self.ray is None:
            runner = self.make_runner()
            for shard in shards:
                with use_threads(1):
                    results = _run(runner, shard, traced)
                yield from results
            return
        yield from self._run_in_processes(shards, workers, traced)

    def _run_in_processes(
        self, shards: Iterable[list[int]], workers: int, traced: bool
    ) -> Iterator[EpisodeResult]:
        queue: deque[Future[list[EpisodeResult]]] = deque()
        try:
            sent = self.policy if self.ray is not None and isinstance(self.policy, Path) else None
            files = {} if sent is None else RunDirectory(sent).pack()
            gpus = 0.0 if self.device == "cpu" else GPU_SHARE
            with open_pool(workers, _start_worker, self, files, ray=self.ray, gpus=gpus) as pool:
                for shard in shards:
                    queue.append(pool.submit(_run_in_worker, shard, traced))
                    if len(queue) > AHEAD * pool.capacity:
                        yield from queue.popleft().result()
                while queue:
                    yield from queue.popleft().result()
        except BrokenExecutor as error:
            raise EnvError(
                "a process that rolls out episodes has died, perhaps in a library of the environment: run "
                "with --workers 1, without --ray, to see its message"
            ) from error

    def make_runner(self) -> Runner:
        """Load the policy or the expert and make its environments."""
        if self.expert is not None:
            return ExpertRunner(self.expert, self.config)
        return EnvRunner(self.policy, self.config, device=self.device, batch=self.batch)


def _run(runner: Runner, seeds: Sequence[int], traced: bool) -> list[EpisodeResult]:
    results = runner.run(seeds)
    return [
        replace(result, trace=replace(result.trace, histories=[]) if traced else Trace())
        for result in results
    ]


_pool: RolloutPool | None = None
_files: Mapping[str, bytes] = {}
_runner: Runner | None = None


def _start_worker(pool: RolloutPool, files: Mapping[str, bytes]) -> None:
    """Keep what a runner is made from; a process of a Ray cluster may have worked for another pool."""
    global _pool, _files, _runner
    torch.set_num_threads(1)
    _pool, _files, _runner = pool, files, None


def _run_in_worker(seeds: Sequence[int], traced: bool) -> list[EpisodeResult]:
    """Run episodes with the runner of this process, which the first call makes."""
    global _runner
    if _runner is None:  # not in `_start_worker`, whose errors would restart the process for ever
        assert _pool is not None
        with TemporaryDirectory() as folder:
            for name, content in _files.items():
                replace_file(Path(folder, name), content)
            _runner = (replace(_pool, policy=Path(folder)) if _files else _pool).make_runner()
    return _run(_runner, seeds, traced)
