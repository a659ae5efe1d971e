"""Fit a model to data that lives in memory on the model's device; knows no environment and no files."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from nsde_policy.config import TrainConfig
from nsde_policy.errors import CheckpointError, ConfigError, DivergedError
from nsde_policy.models.interface import AbstractModel, LossParts, Stage


class TensorData(Protocol):
    """Rows of tensors, picked by a tensor of indices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Self: ...

    def to(self, device: torch.device | str) -> Self:
        """The same rows on another device."""


Data = TypeVar("Data", bound=TensorData)
Callback = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class FitRecord:
    """What happened during a fit."""

    steps: list[int]
    """Steps at which the losses were recorded."""
    losses: Mapping[str, list[float]]
    """Each part of the loss at those steps."""
    seconds: float
    """Wall-clock time."""


def fit(
    model: AbstractModel[Data],
    data: Data,
    config: TrainConfig,
    *,
    seed: int,
    callback: Callback | None = None,
) -> FitRecord:
    """Minimise the model's loss with AdamW; the model ends with the averaged weights, in evaluation mode.

    **Arguments:**

    - `data`: moved once to the model's device and sampled there by index.
    - `seed`: fixes the batches and all randomness of the losses.
    - `callback`: called with the step and its losses at every record.
    """
    started = time.perf_counter()
    training = Training(model, data, config, seed=seed)
    steps: list[int] = []
    history: list[Mapping[str, float]] = []
    while training.step < config.steps:
        losses = training.advance(1 if training.step == 0 else config.log_every)
        steps.append(training.step - 1)
        history.append(losses)
        if callback is not None:
            callback(training.step - 1, losses)
    training.finish()
    return FitRecord(
        steps, {name: [h[name] for h in history] for name in history[0]}, time.perf_counter() - started
    )


class Training(Generic[Data]):
    """A fit under way, which can be advanced, saved, and continued bit for bit (on a CPU).

    On CUDA the whole step (batch, losses, gradients, update, average) is captured once in a graph and then
    replayed, so the host does nothing but launch it. Losses are read once per `advance`, not per step.
    """

    def __init__(self, model: AbstractModel[Data], data: Data, config: TrainConfig, *, seed: int) -> None:
        self._model, self._config = model, config
        self._device = next(model.parameters()).device
        self._data = data.to(self._device)
        self._generator = torch.Generator(self._device).manual_seed(seed)
        self._stages = model.stages()
        if config.steps < len(self._stages):
            raise ConfigError(f"{len(self._stages)} stages need as many steps or more, got {config.steps}")
        self.step = 0
        """Steps done."""
        self._run = self._begin(0)

    def advance(self, steps: int) -> Mapping[str, float]:
        """Do some steps, at most to the end of the stage; return the losses of the last one."""
        first, last = self._bounds(self._stage)
        for step in range(self.step, min(self.step + steps, last)):
            parts = self._run.step(step - first)
            self.step += 1
        losses = {name: float(part) for name, part in parts.parts.items()}
        bad = [name for name, loss in losses.items() if not math.isfinite(loss)]
        if bad or not self._run.is_finite():
            what = f"the {bad[0]} loss is {losses[bad[0]]}" if bad else "the weights are no longer finite"
            raise DivergedError(
                f"training diverged before step {self.step}: {what}; lower train.learning-rate "
                f"({self._config.learning_rate:g}) or train.clip ({self._config.clip:g})"
            )
        if self.step == last and self.step < self._config.steps:
            self._run.finish()
            self._run = self._begin(self._stage)
        return losses

    def is_finite(self) -> bool:
        """Whether what would be saved is made of numbers."""
        return self._run.is_finite()

    def finish(self) -> None:
        """Put the averaged weights into the model, and leave it in evaluation mode."""
        self._run.finish()

    def averaged(self) -> dict[str, Tensor]:
        """The model's state with the averaged weights in it: what would be kept if training ended now."""
        average = {id(p): a for p, a in zip(self._run.parameters, self._run.average, strict=True)}
        named = dict(self._model.named_parameters())
        return {
            name: (average.get(id(named[name]), tensor) if name in named else tensor).detach().clone()
            for name, tensor in self._model.state_dict().items()
        }

    def state(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors."""
        state = {f"model.{name}": tensor for name, tensor in self._model.state_dict().items()}
        state |= self._run.state()
        state["generator"] = self._generator.get_state()
        state["step"] = torch.tensor(self.step)
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned, for the same model, data and settings."""
        try:
            self.step = int(state["step"])
            weights = {n.removeprefix("model."): t for n, t in state.items() if n.startswith("model.")}
            self._model.load_state_dict(weights)
            self._run = self._begin(self._stage)
            self._run.restore(state)
            self._generator.set_state(state["generator"].cpu())
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the saved training does not fit these settings: {error}") from error

    @property
    def _stage(self) -> int:
        n = len(self._stages)
        return next(i for i in range(n) if self.step < self._bounds(i)[1] or i == n - 1)

    def _bounds(self, stage: int) -> tuple[int, int]:
        """First step of a stage, and one past its last."""
        total, n = self._config.steps, len(self._stages)
        return total * stage // n, total * (stage + 1) // n

    def _begin(self, stage: int) -> "StageRun[Data]":
        first, last = self._bounds(stage)
        return StageRun(
            self._model, self._stages[stage], self._config, last - first, self._data, self._generator
        )


class StageRun(Generic[Data]):
    """One stage under way: its optimiser, its averaged weights and, on CUDA, its captured step."""

    EAGER_STEPS = 3
    """Steps before the capture, in which libraries set themselves up."""

    def __init__(
        self,
        model: AbstractModel[Data],
        stage: Stage,
        config: TrainConfig,
        steps: int,
        data: Data,
        generator: torch.Generator,
    ) -> None:
        self._model, self._stage, self._config, self._steps = model, stage, config, steps
        self._data, self._generator = data, generator
        self._device = generator.device
        self._rate, self._keep = (torch.zeros((), device=self._device) for _ in range(2))
        self._optimizer = torch.optim.AdamW(
            stage.parameters,
            lr=self._rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=self._device.type == "cuda",
        )
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
        """What is trained."""
        return self._stage.parameters

    def step(self, step: int) -> LossParts:
        """One update; returns the losses before it, tensors that the next step may overwrite."""
        self._rate.fill_(learning_rate(step, self._steps, self._config))
        self._keep.fill_(min(self._config.ema, (1 + step) / (10 + step)))
        if self._device.type != "cuda":
            self._parts = self._update()
        elif self._graph is not None:
            self._graph.replay()
        elif self._eager < self.EAGER_STEPS:
            self._eager += 1
            with _on(self._stream), _tensor_cores():
                self._parts = self._update()
        else:
            self._capture()
        return self._parts

    def _update(self) -> LossParts:
        index = torch.randint(
            len(self._data), (self._config.batch_size,), generator=self._generator, device=self._device
        )
        with self._autocast():
            parts = self._model.loss(self._data[index], self._generator)
        self._optimizer.zero_grad(set_to_none=True)
        parts.total(self._stage.losses).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._stage.parameters, self._config.clip)
        self._optimizer.step()
        with torch.no_grad():
            # The decay is min(ema, (1 + n)/(10 + n)): the first weights, which are noise, are soon forgotten.
            torch._foreach_mul_(self.average, self._keep)
            torch._foreach_add_(self.average, torch._foreach_mul(list(self.parameters), 1 - self._keep))
        return LossParts({name: part.detach() for name, part in parts.parts.items()})

    def _autocast(self) -> torch.autocast:
        """Casts are not cached: a captured step must make them anew every time it is replayed."""
        wanted = self._device.type == "cuda" and self._config.precision == "bf16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=wanted, cache_enabled=False)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        self._optimizer.zero_grad(set_to_none=True)
        with _tensor_cores(), torch.cuda.graph(graph, stream=self._stream):
            self._parts = self._update()
        self._graph = graph
        graph.replay()

    def is_finite(self) -> bool:
        """Whether every averaged weight is a number."""
        return bool(torch.stack([a.isfinite().all() for a in self.average]).all())

    def finish(self) -> None:
        """Put the averaged weights into the model, and leave it in evaluation mode."""
        with torch.no_grad():
            for parameter, average in zip(self.parameters, self.average, strict=True):
                parameter.copy_(average)
        self._model.eval()

    def state(self) -> dict[str, Tensor]:
        """Averaged weights and the optimiser's memory, by the parameter's place."""
        state = {f"average.{i}": average for i, average in enumerate(self.average)}
        for i, parameter in enumerate(self.parameters):
            for name, value in self._optimizer.state[parameter].items():
                state[f"optimizer.{i}.{name}"] = torch.as_tensor(value)
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        with torch.no_grad():
            for i, average in enumerate(self.average):
                average.copy_(state[f"average.{i}"])
        for i, parameter in enumerate(self.parameters):
            prefix = f"optimizer.{i}."
            memory = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
            self._optimizer.state[parameter] = {n: t.clone().to(self._device) for n, t in memory.items()}


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Rise linearly for the warm-up, then fall to 0 along a cosine."""
    warm = max(1, round(config.warmup * steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


@contextmanager
def _on(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Work on another stream than the current one, as a capture wants of what comes before it."""
    assert stream is not None
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Allow TF32 in matrix products for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
