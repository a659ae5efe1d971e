"""Sources of training batches: rows of tensors on the device, or frames that are read ahead from a file."""

import abc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch
from torch import Tensor

from nsde_policy.core.targets import TensorRows

Batch = TypeVar("Batch")
Data = TypeVar("Data", bound=TensorRows)

BATCHES_AHEAD = 3
"""Batches that are loaded ahead of time."""


class BatchSource(abc.ABC, Generic[Batch]):
    """Supplies the batch of each training step."""

    def prepare(self, step: int) -> None:
        """Load what a step needs; called before the step, outside its CUDA graph."""

    @abc.abstractmethod
    def sample(self, generator: torch.Generator) -> Batch:
        """Return a batch; its kernels are captured, so that a replay samples another batch."""


class TableSource(BatchSource[Data]):
    """Samples rows of tensors with replacement, on the device that holds them."""

    def __init__(self, data: Data, batch_size: int) -> None:
        self._data, self._batch_size = data, batch_size

    def sample(self, generator: torch.Generator) -> Data:
        """Return `batch_size` random rows."""
        index = torch.randint(
            len(self._data), (self._batch_size,), generator=generator, device=generator.device
        )
        return self._data[index]


class PrefetchSource(BatchSource[Batch]):
    """Copies batches that a thread loads ahead of time into buffers on the device.

    `load` returns the tensors of the batch of a step, always the same ones, so that a resumed run continues
    with the batches that it would have had; `build` makes a batch of them.
    """

    def __init__(
        self,
        load: Callable[[int], tuple[Tensor, ...]],
        build: Callable[[tuple[Tensor, ...]], Batch],
        device: torch.device,
    ) -> None:
        self._build, self._device = build, device
        self._load = load if device.type == "cpu" else lambda step: tuple(t.pin_memory() for t in load(step))
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._loading: dict[int, Future[tuple[Tensor, ...]]] = {}
        self._buffers: tuple[Tensor, ...] = ()

    def prepare(self, step: int) -> None:
        """Wait for the batch of this step, copy it to the device and start to load later ones."""
        for later in range(step, step + 1 + BATCHES_AHEAD):
            if later not in self._loading:
                self._loading[later] = self._executor.submit(self._load, later)
        tensors = self._loading.pop(step).result()
        if not self._buffers:
            self._buffers = tuple(tensor.to(self._device) for tensor in tensors)
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer.copy_(tensor, non_blocking=True)

    def sample(self, generator: torch.Generator) -> Batch:
        """Return the batch in the buffers."""
        return self._build(self._buffers)

    def close(self) -> None:
        """Stop loading batches and wait for the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)
