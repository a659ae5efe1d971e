"""Computations of a policy on a GPU as CUDA graphs: one call starts all of their small kernels."""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nsde_policy.methods.base import BatchRng

Distribution = Literal["normal", "uniform"]
Function = Callable[[Sequence[Tensor], BatchRng], dict[str, Tensor]]

NO_NOISE = BatchRng([])
"""For functions without random numbers."""
MOST_GRAPHS = 512
"""Graphs in the cache of a policy; a full cache is cleared."""
_LOCK = threading.Lock()


class BufferedNoise(BatchRng):
    """Tensors in the place of random numbers: those of the caller, or buffers that `fill` fills."""

    def __init__(self, rows: int, device: torch.device | str, tensors: Sequence[Tensor] = ()) -> None:
        super().__init__([], device)
        self._rows, self._next = rows, 0
        self.buffers: list[tuple[Distribution, Tensor]] = [("normal", tensor) for tensor in tensors]
        """Tensors, (rows, ...), and the distribution from which `fill` samples them."""

    def normal(self, *shape: int) -> Tensor:
        """Return the next tensor."""
        return self._take("normal", shape)

    def uniform(self, *shape: int) -> Tensor:
        """Return the next tensor."""
        return self._take("uniform", shape)

    def _take(self, distribution: Distribution, shape: tuple[int, ...]) -> Tensor:
        if self._next == len(self.buffers):
            buffer = torch.full((self._rows, *shape), 0.5, device=self._device)
            self.buffers.append((distribution, buffer))
        self._next += 1
        return self.buffers[self._next - 1][1]

    def rewind(self) -> None:
        """Return the same tensors again, from the first one."""
        self._next = 0

    def fill(self, rng: BatchRng) -> None:
        """Sample the numbers of the first rows, in the order of the computation."""
        for distribution, buffer in self.buffers:
            sample = rng.normal if distribution == "normal" else rng.uniform
            buffer[: len(rng)] = sample(*buffer.shape[1:])


class _Graph:
    """A captured computation of a fixed number of rows."""

    def __init__(
        self, function: Function, tensors: Sequence[Tensor], rng: BatchRng, rows: int, pool: Any
    ) -> None:
        """Compute once, as CUDA libraries need it, and capture; rows are added by repeating the first."""
        count = len(tensors[0])
        fill = [0] * (rows - count)
        self._inputs = [tensor[[*range(count), *fill]].clone() for tensor in tensors]
        self._noise = BufferedNoise(rows * len(rng) // count, tensors[0].device)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(self._inputs, self._noise)
        torch.cuda.current_stream().wait_stream(stream)
        self._noise.rewind()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            self._outputs = function(self._inputs, self._noise)

    def replay(self, tensors: Sequence[Tensor], rng: BatchRng) -> dict[str, Tensor]:
        """Compute up to as many rows as were captured."""
        rows = len(tensors[0])
        for buffer, tensor in zip(self._inputs, tensors, strict=True):
            buffer[:rows] = tensor
        self._noise.fill(rng)
        self._graph.replay()
        return {name: output[:rows].clone() for name, output in self._outputs.items()}


class GraphCache:
    """CUDA graphs of functions whose rows are independent, by name and size, a power of two."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[Hashable, ...], _Graph | None] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def call(
        self, name: Hashable, function: Function, tensors: Sequence[Tensor], rng: BatchRng
    ) -> dict[str, Tensor]:
        """Compute rows of tensors with their random numbers, of which each row may have several.

        A name stands for one function and its settings. The first call of a size captures it; what waits for
        the GPU in between cannot be captured and is computed as usual.
        """
        rows = len(tensors[0])
        size = 1 << (rows - 1).bit_length()
        key = name, size, *(tensor.shape[1:] for tensor in tensors)
        with _LOCK, torch.cuda.device(tensors[0].device):
            if key not in self._graphs:
                if len(self._graphs) >= MOST_GRAPHS:
                    self._graphs.clear()
                self._graphs[key] = self._capture(function, tensors, rng, size)
            graph = self._graphs[key]
            return function(tensors, rng) if graph is None else graph.replay(tensors, rng)

    def _capture(
        self, function: Function, tensors: Sequence[Tensor], rng: BatchRng, size: int
    ) -> _Graph | None:
        """Return a graph; None after a capture that failed, which leaves its stream and its pool unusable."""
        stream = torch.cuda.current_stream()
        try:
            return _Graph(function, tensors, rng, size, self._pool)
        except RuntimeError:
            torch.cuda.set_stream(stream)
            self._pool = torch.cuda.graph_pool_handle()
            return None
