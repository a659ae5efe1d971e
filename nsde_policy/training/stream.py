"""Training on stores larger than memory: shards are read from disk in random order, during training.

The rows of a store are cut into equal lanes, which all give the same share of every batch, and lanes into
equal shards of consecutive rows. A lane has one shard in memory, with its rows shuffled. When all of them are
used, another shard takes its place, in an order that is drawn for each epoch; a thread has loaded it. So
batches mix the rows of as many shards as there are lanes, and each row is used once in an epoch.

The seed and the step determine the rows of a batch: a resumed run loads the shards of its step. A process of
torchrun loads only the lanes of its rows of the batch.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from nsde_policy.config import TrainedEncoderConfig
from nsde_policy.core.targets import Transitions, Windows
from nsde_policy.data.augmentation import Mirror
from nsde_policy.data.stream import EpisodeStream, find_runs
from nsde_policy.data.types import Demonstrations, Ints
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunRecord
from nsde_policy.training.batches import PrefetchSource
from nsde_policy.training.dataset import build_training_data, count_rows
from nsde_policy.training.distributed import find_own_rows

MAX_LANES, SHARDS = 8, 16
"""Most lanes, of which as many are used as divide a batch evenly. The window also covers
the next shards and the memory to build them."""
LARGEST_EPISODE, LOAD_AHEAD = 0.25, 0.25
"""Share of the window that an episode may fill; share of a shard that is left when the next one is loaded."""

Batch = TypeVar("Batch")
Rows = tuple[Tensor, ...]
"""Tensors with as many rows each."""


class Lane:
    """Rows of a part of a store, again and again, in a random order that reads one shard after the other.

    `load` returns the rows of a shard by the number of its first row and one past its last, `times` as many:
    2 with mirror images. `bounds` are these numbers.
    """

    def __init__(
        self,
        load: Callable[[int, int], Rows],
        bounds: Ints,
        times: int,
        seed: Sequence[int],
        loader: Executor,
    ) -> None:
        self._load, self._bounds, self._seed, self._loader = load, bounds, seed, loader
        self._sizes = times * np.diff(bounds)
        self._shards: dict[tuple[int, int], Future[Rows]] = {}
        self._draw_order = lru_cache(2)(
            lambda epoch: np.random.default_rng([*seed, epoch]).permutation(len(self._sizes))
        )

    def read(self, first: int, count: int) -> Rows:
        """Return `count` rows from number `first` on; the order never ends."""
        epoch, row = divmod(first, int(self._sizes.sum()))
        ends = np.cumsum(self._sizes[self._draw_order(epoch)])
        nth = int(np.searchsorted(ends, row, side="right"))
        left, places = int(ends[nth]) - row, [(epoch, nth)]
        if left - count <= LOAD_AHEAD * self._sizes.max():
            places.append((epoch, nth + 1) if nth + 1 < len(ends) else (epoch + 1, 0))
        self._shards = {
            place: self._shards.get(place) or self._loader.submit(self._load_shard, *place)
            for place in places
        }
        rows = tuple(tensor[-left:][:count] for tensor in self._shards[epoch, nth].result())
        return rows if left >= count else _join([rows, self.read(first + left, count - left)])

    def _load_shard(self, epoch: int, nth: int) -> Rows:
        """Load a shard by its place in the order of an epoch, and shuffle its rows."""
        shard = int(self._draw_order(epoch)[nth])
        rows = self._load(*self._bounds[shard : shard + 2].tolist())
        order = np.random.default_rng([*self._seed, epoch, nth]).permutation(int(self._sizes[shard]))
        return tuple(torch.from_numpy(tensor.numpy()[order]) for tensor in rows)  # torch keeps what is freed


def _join(parts: Sequence[Rows]) -> Rows:
    return tuple(map(torch.cat, zip(*parts, strict=True)))


class StreamSource(PrefetchSource[Batch]):
    """Supplies batches of the rows of a store, each process of torchrun its share of them.

    `load` makes the rows of some episodes; `counts` is how many each gives, without mirror images, or 0 to
    leave it out. `build` makes a batch of some rows. Raises `ConfigError` if an episode is too long.
    """

    def __init__(
        self,
        stream: EpisodeStream,
        load: Callable[[range], Rows],
        counts: Ints,
        build: Callable[[Rows], Batch],
        *,
        batch_size: int,
        device: torch.device | str,
        seed: int,
    ) -> None:
        self._load_episodes, self._used = load, np.flatnonzero(counts)
        self._ends, probe = np.cumsum(counts[self._used]), load(find_runs(self._used[:1])[0])
        self._times = len(probe[0]) // int(self._ends[0])
        row_bytes = sum(tensor.nbytes for tensor in probe) / int(self._ends[0])
        row_mb = max(row_bytes, stream.frame_bytes) / 2**20
        if (needed := math.ceil(counts.max() * row_mb / LARGEST_EPISODE)) > stream.window_mb:
            raise ConfigError(
                f"a window of {stream.window_mb} MB is too small for episode {counts.argmax()}, which fills "
                f"{counts.max() * row_mb:.2g} MB, more than a quarter: set --window-mb to {needed} or more"
            )
        lanes, rows = max(n for n in range(1, MAX_LANES + 1) if batch_size % n == 0), int(self._ends[-1])
        shards = math.ceil(rows * row_mb / stream.window_mb * SHARDS / MAX_LANES)  # of a lane
        bounds = np.arange(lanes * shards + 1) * rows // (lanes * shards)
        loader, times = ThreadPoolExecutor(1, thread_name_prefix="shards"), self._times
        parts = (bounds[lane * shards :][: shards + 1] for lane in range(lanes))
        every = [Lane(self._load_rows, part, times, (seed, i), loader) for i, part in enumerate(parts)]
        share, own = batch_size // lanes, find_own_rows(batch_size)
        late = times * int(bounds[1]) // lanes  # lanes begin at different rows, and load by turns

        def load_batch(step: int) -> Rows:
            """Load the rows of a step that this process computes."""
            found = []
            for i in range(own.start // share, -(-own.stop // share)):
                first, last = max(own.start - i * share, 0), min(own.stop - i * share, share)
                found.append(every[i].read(i * late + step * share + first, last - first))
            return _join(found)

        super().__init__(load_batch, build, torch.device(device))
        self._lanes, self._loader = every, loader

    def _load_rows(self, first: int, last: int) -> Rows:
        """Load the episodes that hold some rows, and cut off the others."""
        start, stop = np.searchsorted(self._ends, [first, last - 1], side="right").tolist()
        skipped = first - int(self._ends[start - 1]) if start else first
        runs = [self._load_episodes(run) for run in find_runs(self._used[start : stop + 1])]
        found = []
        for tensors in zip(*runs, strict=True):
            whole = torch.cat([tensor.unflatten(0, (self._times, -1)) for tensor in tensors], dim=1)
            found.append(whole[:, skipped : skipped + last - first].flatten(0, 1))
        return tuple(found)

    def close(self) -> None:
        """Stop loading batches and shards, wait for the threads, and free the memory."""
        super().close()
        self._loader.shutdown(wait=True, cancel_futures=True)
        self._lanes.clear()


def stream_rows(
    record: RunRecord, demos: Demonstrations, mirror: Mirror | None, device: str
) -> StreamSource[Transitions | Windows] | None:
    """Return batches of the store that demonstrations are a sample of; None if they are all."""
    stream, config = demos.stream, record.config
    if stream is None:
        return None
    frames, view = stream.count_frames(), get_method(config.method).model_class().training_view
    batch: type[Transitions | Windows] = Transitions if view == "transitions" else Windows

    def build_rows(episodes: range) -> Rows:
        return tuple(vars(build_training_data(stream.read(episodes), config, mirror)).values())

    return StreamSource(
        stream,
        build_rows,
        count_rows(frames, config) * (frames > 0),
        lambda rows: batch(*rows),
        batch_size=config.train.batch_size,
        device=device,
        seed=record.seed,
    )


def check_streaming(demos: Demonstrations, config: RunConfig) -> None:
    """Raise `ConfigError` if demonstrations are a sample of a store, and settings need all of it at once."""
    is_trained_first = isinstance(config.encoder, TrainedEncoderConfig)
    changes = {
        "--encoder keypoints": config.demos.images and not is_trained_first,
        "--encoder.masked-steps 0": getattr(config.encoder, "masked_steps", 0),
        "--images-dropout 0": config.demos.images_dropout,
        "--demos.no-align-ends": config.demos.align_ends,
    }
    if demos.stream is not None and any(changes.values()):
        raise ConfigError(
            f"{demos.source} does not fit into memory, and these settings need all of it at once: use "
            f"{' '.join(flag for flag, needed in changes.items() if needed)}, or a larger --window-mb"
        )
