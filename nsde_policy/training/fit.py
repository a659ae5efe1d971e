"""Fit a model: the training loop, independent of files and environments."""

import abc
import itertools
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from nsde_policy.config import TrainConfig
from nsde_policy.core.batches import TensorRows
from nsde_policy.errors import CheckpointError, NsdePolicyError
from nsde_policy.methods.base import TrainableModel

from .cuda_graph import capture_step
from .distributed import average_ranks, copy_first_rank, get_rank, is_first_rank, split_batch
from .optimizer import AdamW, WeightAverage, averaging_decay, learning_rate
from .options import Losses

RANK_SEEDS = 1_000_003
"""Difference between the seeds of two ranks, more than users try."""
Batch = TypeVar("Batch")
Data = TypeVar("Data", bound=TensorRows)


class BatchSource(abc.ABC, Generic[Batch]):
    """Supplies the batch of each training step."""

    def load(self, step: int) -> None:
        """Load what a step needs; called before the step, outside its CUDA graph."""

    @abc.abstractmethod
    def sample(self, generator: torch.Generator) -> Batch:
        """Return a batch; its kernels are captured, so that a replay samples another batch."""


class TableSource(BatchSource[Data]):
    """Samples rows of tensors with replacement, on the device that holds them."""

    def __init__(self, data: Data, batch_size: int) -> None:
        self._data = data
        self._batch_size = batch_size

    def sample(self, generator: torch.Generator) -> Data:
        """Return `batch_size` random rows."""
        device = generator.device
        index = torch.randint(len(self._data), (self._batch_size,), generator=generator, device=device)
        return self._data[index]


class Recorder:
    """Base of what watches a fit; this one does nothing. `RunRecorder` writes a run directory."""

    def load_checkpoint(self) -> Mapping[str, Tensor] | None:
        """Return the `FitState.state` to resume from; None to start from the beginning."""
        return None

    def watch(self, state: "FitState") -> AbstractContextManager[None]:
        """Return a context around all steps."""
        return nullcontext()

    def after_step(self, state: "FitState") -> bool:
        """Note that a step is finished; return whether the losses are to be recorded now."""
        return False

    def record(self, state: "FitState", losses: Losses) -> None:
        """Record losses; an exception ends the fit."""


def fit(
    model: TrainableModel[Any],
    data: TensorRows | BatchSource[Any],
    config: TrainConfig,
    *,
    seed: int,
    recorder: Recorder | None = None,
) -> list[Losses]:
    """Minimise the model's losses with AdamW; the model ends with the averaged weights, in evaluation mode.

    The seed determines batches and randomness in the losses. A fit that resumes from a checkpoint of the
    recorder gives the same weights as one that was not interrupted, on a CPU to the last bit. A model
    without parameters has nothing to train.

    Returns:
        The losses every `log_every` steps and at the last one.
    """
    recorder, history = recorder or Recorder(), list[Losses]()
    state = FitState(model, config, seed=seed)
    if (checkpoint := recorder.load_checkpoint()) is not None:
        state.restore(checkpoint)
    source = data
    if not isinstance(source, BatchSource):
        source = TableSource(source.to(state.device), split_batch(config.batch_size))

    def update() -> dict[str, Tensor]:
        """Make one step and return the losses before it; on CUDA, this is captured once and replayed."""
        with state.autocast():
            losses = model.loss(source.sample(state.generator), state.generator)
        torch.stack([*losses.values()]).sum().backward()  # type: ignore[no-untyped-call]
        losses = {name: loss.detach() for name, loss in losses.items()}
        losses = average_ranks(state.parameters, losses)
        nn.utils.clip_grad_norm_(state.parameters, config.clip)
        state.optimizer.step()
        state.optimizer.zero_grad()  # a capture must begin without gradients
        state.average.update()
        return losses

    run_step = capture_step(update, state.generator)
    with recorder.watch(state):
        if not state.parameters and state.step < config.steps:
            state.step = config.steps
            history.append({})
            recorder.record(state, {})
        while state.step < config.steps:
            state.set_rates()
            source.load(state.step)
            losses = run_step()
            state.step += 1
            is_due = state.step % config.log_every == 0 or state.step == config.steps
            if recorder.after_step(state) or is_due:
                history.append(state.read(losses))
                recorder.record(state, history[-1])
    state.finish()
    return history


class FitState:
    """What a fit continues from: weights, their averages, the optimiser's moments, generator and step."""

    def __init__(self, model: TrainableModel[Any], config: TrainConfig, *, seed: int) -> None:
        self.model = model
        self.config = config
        self.parameters = model.trained_parameters()
        self.step = 0
        """Number of finished steps."""
        copy_first_rank(model)
        self._seed = seed + RANK_SEEDS * get_rank()
        self.device = next(itertools.chain(model.parameters(), model.buffers())).device
        self.generator = torch.Generator(self.device).manual_seed(self._seed)
        self.optimizer = AdamW(self.parameters, config, self.device)
        self.average = WeightAverage(self.parameters, self.device)
        model.train()

    def set_rates(self) -> None:
        """Set the learning rate and the decay of the averages for the next step."""
        self.optimizer.rate.fill_(learning_rate(self.step, self.config))
        self.average.decay.fill_(averaging_decay(self.step, self.config))

    def autocast(self) -> torch.autocast:
        """Enable bf16 if configured; casts are not cached because each replay must redo them."""
        is_bf16 = self.device.type == "cuda" and self.config.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16, cache_enabled=False)

    def read(self, losses: Mapping[str, Tensor]) -> Losses:
        """Copy losses to the host; raise `NsdePolicyError` if they or the weights are not finite."""
        values = {name: float(loss) for name, loss in losses.items()}
        bad = [name for name, loss in values.items() if not math.isfinite(loss)]
        if bad or not self.average.is_finite():
            what = f"the {bad[0]} loss is {values[bad[0]]}" if bad else "the weights are no longer finite"
            raise NsdePolicyError(
                f"training diverged before step {self.step}: {what}; lower train.learning-rate "
                f"({self.config.learning_rate:g}) or train.clip ({self.config.clip:g})"
            )
        return values

    def finish(self) -> None:
        """Copy the averaged weights into the model and set evaluation mode."""
        self.average.copy_to_weights()
        self.model.eval()

    def averaged_weights(self) -> dict[str, Tensor]:
        """Return the model's state dict with averaged weights, as if training ended now."""
        pairs = zip(self.parameters, self.average.means, strict=True)
        averages = {id(weight): mean for weight, mean in pairs}
        state = self.model.state_dict(keep_vars=True)
        return {name: averages.get(id(tensor), tensor).detach().clone() for name, tensor in state.items()}

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to resume, as tensors."""
        state = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        state |= self._list_averages_and_moments()
        state |= {"generator": self.generator.get_state(), "step": torch.tensor(self.step)}
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def _list_averages_and_moments(self) -> dict[str, Tensor]:
        """Return the averaged weights and the state of the optimiser by their names in a checkpoint."""
        named = {f"average.{i}": mean for i, mean in enumerate(self.average.means)}
        for name, tensors in self.optimizer.state.items():
            named |= {f"optimizer.{i}.{name}": tensor for i, tensor in enumerate(tensors)}
        return named

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a `state`, for the same model, data and settings."""
        prefix = "model."
        weights = {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
        try:
            self.step = int(state["step"])
            self.model.load_state_dict(weights)
            for name, tensor in self._list_averages_and_moments().items():
                if name in state or name.startswith("average."):  # not all parameters have had a gradient
                    tensor.copy_(state[name])
            if is_first_rank():
                self.generator.set_state(state["generator"].cpu())
            else:  # rank 0 saved its own generator only
                self.generator.manual_seed(self._seed + self.step)
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the training checkpoint does not match these settings: {error}"
            ) from error
