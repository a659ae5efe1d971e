"""One stage of a fit: optimiser, averaged weights and, on CUDA, the captured step."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from nsde_policy.config import TrainConfig
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.training.batches import BatchSource
from nsde_policy.training.distributed import average_ranks

Batch = TypeVar("Batch")


class FusedAdamW:
    """AdamW with a learning rate in a tensor.

    It makes the updates of `torch.optim.AdamW(fused=True)`, which imports the compiler of torch.
    """

    def __init__(self, parameters: tuple[nn.Parameter, ...], rate: Tensor, config: TrainConfig) -> None:
        self._parameters, self._rate, self._config = parameters, rate, config
        self.state: dict[int, dict[str, Tensor]] = {}
        """Steps and moments by the index of a parameter that has had a gradient."""

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        used = {i: (p, p.grad) for i, p in enumerate(self._parameters) if p.grad is not None}
        for i, (p, _) in used.items():
            if i not in self.state:
                step = torch.zeros((), device=p.device)
                self.state[i] = {
                    "step": step,
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        names = ("exp_avg", "exp_avg_sq", "step")
        first, second, steps = ([self.state[i][name] for i in used] for name in names)
        beta1, beta2 = self._config.betas
        adamw(
            [p for p, _ in used.values()],
            [grad for _, grad in used.values()],
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=self._rate,
            weight_decay=self._config.weight_decay,
            eps=1e-8,
            maximize=False,
        )


class StageRun(Generic[Batch]):
    """A running stage: optimiser, averaged weights and, on CUDA, the captured step."""

    EAGER_STEPS = 3
    """Steps before the capture, so that CUDA libraries are initialised."""

    def __init__(
        self,
        model: TrainableModel[Batch],
        stage: Stage,
        config: TrainConfig,
        steps: int,
        source: BatchSource[Batch],
        generator: torch.Generator,
    ) -> None:
        self._model, self._stage, self._config, self._steps = model, stage, config, steps
        self._source, self._generator = source, generator
        self._device = generator.device
        self._rate, self._keep = (torch.zeros((), device=self._device) for _ in range(2))
        self._optimizer = FusedAdamW(stage.parameters, self._rate, config)
        self.average = [parameter.detach().clone() for parameter in stage.parameters]
        self._stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0
        self._parts = LossParts({})
        model.train()

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Parameters trained in this stage."""
        return self._stage.parameters

    def step(self, step: int) -> LossParts:
        """Do one update and return the losses before it; the next step may overwrite these tensors."""
        self._rate.fill_(learning_rate(step, self._steps, self._config))
        self._keep.fill_(averaging_decay(step, self._config))
        self._source.prepare(step)
        if self._device.type != "cuda":
            self._parts = self._update()
        elif self._graph is not None:
            self._graph.replay()
        elif self._eager < self.EAGER_STEPS:
            self._eager += 1
            with _run_on(self._stream), _allow_tf32():
                self._parts = self._update()
        else:
            self._capture()
        return self._parts

    def _update(self) -> LossParts:
        with self._autocast():
            parts = self._model.loss(self._source.draw(self._generator), self._generator)
        self._optimizer.zero_grad()
        parts.total(self._stage.losses).backward()  # type: ignore[no-untyped-call]
        losses = average_ranks(self.parameters, {name: part.detach() for name, part in parts.parts.items()})
        nn.utils.clip_grad_norm_(self._stage.parameters, self._config.clip)
        self._optimizer.step()
        with torch.no_grad():
            torch._foreach_mul_(self.average, self._keep)
            torch._foreach_add_(self.average, torch._foreach_mul(list(self.parameters), 1 - self._keep))
        return LossParts(losses)

    def _autocast(self) -> torch.autocast:
        """Enable bf16 if configured; casts are not cached because each replay must redo them."""
        wanted = self._device.type == "cuda" and self._config.precision == "bf16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=wanted, cache_enabled=False)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        self._optimizer.zero_grad()
        with (
            _allow_tf32(),
            torch.cuda.graph(
                graph,
                stream=self._stream,
                capture_error_mode="thread_local",  # NCCL, and streamed frames, use the GPU in other threads
            ),
        ):
            self._parts = self._update()
        self._graph = graph
        graph.replay()

    def is_finite(self) -> bool:
        """Return whether every averaged weight is finite."""
        return bool(torch.stack([a.isfinite().all() for a in self.average]).all())

    def finish(self) -> None:
        """Copy the averaged weights into the model and set evaluation mode."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.copy_(average)
        self._model.eval()
        self._graph = None  # NCCL waits at exit for graphs that hold an exchange

    def state(self) -> dict[str, Tensor]:
        """Return averaged weights and optimiser state, keyed by parameter index."""
        state = {f"average.{i}": average for i, average in enumerate(self.average)}
        for i, moments in self._optimizer.state.items():
            state |= {f"optimizer.{i}.{name}": value for name, value in moments.items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        with torch.no_grad():
            for i, average in enumerate(self.average):
                average.copy_(state[f"average.{i}"])
        for i in range(len(self.parameters)):
            prefix = f"optimizer.{i}."
            saved = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
            if saved:
                self._optimizer.state[i] = {n: t.clone().to(self._device) for n, t in saved.items()}


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Return the learning rate: linear warm-up, then cosine decay to 0."""
    warm = max(1, round(config.warmup * steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def averaging_decay(step: int, config: TrainConfig) -> float:
    """Return the decay of the averaged weights, which soon drops the random initial weights from them."""
    if config.ema_power > 0:
        return min(config.ema, 1 - math.pow(1 + step, -config.ema_power))
    return min(config.ema, (1 + step) / (10 + step))


@contextmanager
def _run_on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run on a side stream, as CUDA requires for warm-up steps before a capture."""
    assert stream is not None
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
