"""Fit a model to data that lives in memory on the model's device; knows no environment."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from nsde_policy.config import TrainConfig
from nsde_policy.models.interface import AbstractModel, LossParts, Stage


class TensorData(Protocol):
    """Rows of tensors, picked by a tensor of indices."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor) -> Self: ...

    def to(self, device: torch.device | str) -> Self:
        """The same rows on another device."""


Data = TypeVar("Data", bound=TensorData)
Callback = Callable[[int, LossParts], None]


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
    - `callback`: called with the step and its losses (tensors on the device) at every record.
    """
    started = time.perf_counter()
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    data = data.to(device)
    steps: list[int] = []
    history: list[LossParts] = []
    stages = model.stages()
    for i, stage in enumerate(stages):
        first, last = config.steps * i // len(stages), config.steps * (i + 1) // len(stages)
        run = StageRun(model, stage, config, last - first)
        for step in range(first, last):
            index = torch.randint(len(data), (config.batch_size,), generator=generator, device=device)
            parts = run.step(data[index], step - first, generator)
            if step % config.log_every == 0 or step == config.steps - 1:
                steps.append(step)
                history.append(LossParts({name: part.detach() for name, part in parts.parts.items()}))
                if callback is not None:
                    callback(step, history[-1])
        run.finish()
    losses = {name: [float(parts.parts[name]) for parts in history] for name in history[0].parts}
    return FitRecord(steps, losses, time.perf_counter() - started)


class StageRun(Generic[Data]):
    """One stage under way: its optimiser and its averaged weights."""

    def __init__(self, model: AbstractModel[Data], stage: Stage, config: TrainConfig, steps: int) -> None:
        self._model, self._stage, self._config, self._steps = model, stage, config, steps
        self._optimizer = torch.optim.AdamW(
            stage.parameters, lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self._average = [parameter.detach().clone() for parameter in stage.parameters]
        model.train()

    def step(self, batch: Data, step: int, generator: torch.Generator) -> LossParts:
        """One update; returns the losses before it."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(step, self._steps, self._config)
        parts = self._model.loss(batch, generator)
        self._optimizer.zero_grad(set_to_none=True)
        parts.total(self._stage.losses).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._stage.parameters, self._config.clip)
        self._optimizer.step()
        self._update_average(step)
        return parts

    def _update_average(self, step: int) -> None:
        """Decay min(ema, (1 + n)/(10 + n)): the first weights, which are noise, are soon forgotten."""
        decay = min(self._config.ema, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self._average, list(self._stage.parameters), 1 - decay)

    def finish(self) -> None:
        """Put the averaged weights into the model, and leave it in evaluation mode."""
        with torch.no_grad():
            for parameter, average in zip(self._stage.parameters, self._average, strict=True):
                parameter.copy_(average)
        self._model.eval()


def learning_rate(step: int, steps: int, config: TrainConfig) -> float:
    """Rise linearly for the warm-up, then fall to 0 along a cosine."""
    warm = max(1, round(config.warmup * steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
