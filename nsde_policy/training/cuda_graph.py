"""Capture of a training step as a CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

EAGER_STEPS = 3
"""Steps before the capture, so that CUDA libraries are initialised."""


def capture_step(step: Callable[[], Result], generator: torch.Generator) -> Callable[[], Result]:
    """Return a function that does a step; on CUDA, it is captured at the fourth call and then replayed.

    A replay overwrites the tensors that the step returned. Random numbers come from the generator.
    """
    return CapturedStep(step, generator) if generator.device.type == "cuda" else step


class CapturedStep(Generic[Result]):
    """A step that becomes a CUDA graph."""

    def __init__(self, step: Callable[[], Result], generator: torch.Generator) -> None:
        self._step, self._generator = step, generator
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0

    def __call__(self) -> Result:
        """Do the step, or replay it."""
        if self._graph is not None:
            self._graph.replay()
        elif self._eager < EAGER_STEPS:
            self._eager += 1
            with _run_on(self._stream), _allow_tf32():
                self._result = self._step()
        else:
            self._graph = self._capture()
            self._graph.replay()
        return self._result

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # NCCL, and frames that are read ahead, use the GPU in other threads.
        capture = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        with _allow_tf32(), capture:
            self._result = self._step()
        return graph


@contextmanager
def _run_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on a side stream, as CUDA requires for warm-up steps before a capture."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def _allow_tf32() -> Iterator[None]:
    """Allow TF32 in matrix products inside the context."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
