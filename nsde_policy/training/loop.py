"""A training that can be advanced, saved and resumed, independent of environments and files."""

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from nsde_policy.config import TrainConfig
from nsde_policy.core.targets import TensorRows
from nsde_policy.errors import CheckpointError, ConfigError, NsdePolicyError
from nsde_policy.methods.base import TrainableModel
from nsde_policy.training.batches import BatchSource, Data, TableSource
from nsde_policy.training.distributed import copy_first_rank, get_rank, is_first_rank, split_batch
from nsde_policy.training.stage import StageRun

Rows = TypeVar("Rows", bound=TensorRows | Tensor)

RowsOut = TypeVar("RowsOut", covariant=True)


class Table(Protocol[RowsOut]):
    """Something whose rows can be indexed by a tensor."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor, /) -> RowsOut: ...


VALIDATION_PREFIX = "validation_"
"""Prefix of validation losses in the metrics."""
RANK_SEEDS = 1_000_003
"""Difference between the seeds of two ranks, more than users try."""
MAX_VALIDATION_ROWS, MAX_FRAME_ROWS, VALIDATION_BATCH = 4096, 256, 1024
"""Most rows of held-out data whose loss is computed at each record, of rows with frames, and per batch."""


def fit(
    model: TrainableModel[Data], data: Data, config: TrainConfig, *, seed: int
) -> list[Mapping[str, float]]:
    """Minimise the model's loss with AdamW; the model ends with the averaged weights, in evaluation mode.

    The data are moved once to the model's device. The seed determines batches and randomness in the losses.

    Returns:
        The parts of the loss at the first step, then every `log_every` steps and at the last one.
    """
    training = Training(model, data, config, seed=seed)
    history = [training.advance(1)]
    while training.step < config.steps:
        history.append(training.advance(config.log_every))
    training.finish()
    return history


class Training:
    """A fit that can be advanced, saved and resumed (bit for bit on CPU).

    A model without stages has nothing to train and finishes with the first call of `advance`.

    With torchrun, each process computes the loss of its own part of every batch; a run may be resumed with
    another number of processes.

    On CUDA the whole step (batch, losses, gradients, update, averaging) is captured once as a CUDA graph and
    replayed. Losses are copied to the host once per `advance`, not per step.
    """

    def __init__(
        self,
        model: TrainableModel[Any],
        data: TensorRows | BatchSource[Any],
        config: TrainConfig,
        *,
        seed: int,
    ) -> None:
        self.model = model
        self.config = config
        self._device = next(itertools.chain(model.parameters(), model.buffers())).device
        copy_first_rank(model)
        rows = split_batch(config.batch_size)
        self._source = data if isinstance(data, BatchSource) else TableSource(data.to(self._device), rows)
        self._seed = seed + RANK_SEEDS * get_rank()
        self._generator = torch.Generator(self._device).manual_seed(self._seed)
        self._stages = model.stages()
        if config.steps < len(self._stages):
            raise ConfigError(
                f"training in {len(self._stages)} stages needs at least as many steps, got {config.steps}"
            )
        self.step = 0
        """Number of finished steps."""
        self.is_within_step = False
        """Whether a step was begun and not finished, so that `state` cannot be resumed from."""
        self._run = self._start_stage(0) if self._stages else None

    def advance(self, steps: int, is_stopped: Callable[[], bool] = lambda: False) -> Mapping[str, float]:
        """Do up to `steps` steps, at most to the end of the stage; return the losses of the last one.

        `is_stopped` is asked after every step, and ends the call if it returns True.
        """
        if self._run is None:
            self.step = self.config.steps
            return {}
        first, last = self._bounds(self._stage)
        for step in range(self.step, min(self.step + steps, last)):
            self.is_within_step = True
            parts = self._run.step(step - first)
            self.step += 1
            self.is_within_step = False
            if is_stopped():
                break
        losses = {name: float(part) for name, part in parts.parts.items()}
        bad = [name for name, loss in losses.items() if not math.isfinite(loss)]
        if bad or not self._run.is_finite():
            what = f"the {bad[0]} loss is {losses[bad[0]]}" if bad else "the weights are no longer finite"
            raise NsdePolicyError(
                f"training diverged before step {self.step}: {what}; lower train.learning-rate "
                f"({self.config.learning_rate:g}) or train.clip ({self.config.clip:g})"
            )
        if self.step == last and self.step < self.config.steps:
            self.is_within_step = True
            self._run.finish()
            self._run = self._start_stage(self._stage)
            self.is_within_step = False
        return losses

    @property
    def steps_to_record(self) -> int:
        """Steps to the next record of the losses, at the same steps in resumed trainings as in others."""
        first, _ = self._bounds(self._stage) if self._stages else (self.step, 0)
        return self.config.log_every - (self.step - first) % self.config.log_every

    def is_finite(self) -> bool:
        """Return whether all averaged weights are finite."""
        return self._run is None or self._run.is_finite()

    def finish(self) -> None:
        """Copy the averaged weights into the model and set evaluation mode."""
        if self._run is not None:
            self._run.finish()
        self.model.eval()

    def averaged_weights(self) -> dict[str, Tensor]:
        """Return the model's state dict with averaged weights, as if training ended now."""
        run = self._run
        pairs = zip(run.parameters, run.average, strict=True) if run is not None else ()
        average = {id(parameter): mean for parameter, mean in pairs}
        named = dict(self.model.named_parameters())
        return {
            name: (average.get(id(named[name]), tensor) if name in named else tensor).detach().clone()
            for name, tensor in self.model.state_dict().items()
        }

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to resume, as tensors."""
        state = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        state |= self._run.state() if self._run is not None else {}
        state["generator"] = self._generator.get_state()
        state["step"] = torch.tensor(self.step)
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a `state`, for the same model, data and settings."""
        try:
            self.step = int(state["step"])
            weights = {n.removeprefix("model."): t for n, t in state.items() if n.startswith("model.")}
            self.model.load_state_dict(weights)
            if self._stages:
                self._run = self._start_stage(self._stage)
                self._run.restore(state)
            if is_first_rank():
                self._generator.set_state(state["generator"].cpu())
            else:  # rank 0 saved its own generator only
                self._generator.manual_seed(self._seed + self.step)
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the training checkpoint does not match these settings: {error}"
            ) from error

    @property
    def _stage(self) -> int:
        n = len(self._stages)
        return next(i for i in range(n) if self.step < self._bounds(i)[1] or i == n - 1)

    def _bounds(self, stage: int) -> tuple[int, int]:
        """Return the first step of a stage and one past its last."""
        total, n = self.config.steps, len(self._stages)
        return total * stage // n, total * (stage + 1) // n

    def _start_stage(self, stage: int) -> StageRun[Any]:
        first, last = self._bounds(stage)
        return StageRun(
            self.model, self._stages[stage], self.config, last - first, self._source, self._generator
        )


class Validation:
    """Losses of the averaged weights on held-out data.

    They are computed by a copy of the model in evaluation mode, so that training, its random numbers and its
    captured step are not touched. The noise in the losses is the same at every call.
    """

    def __init__(self, data: TensorRows, training: Training, *, seed: int, device: str) -> None:
        self._training = training
        self._seed = seed
        self._device = device
        self._data = data.to(device)
        self._model = copy.deepcopy(training.model).eval().requires_grad_(False)

    def losses(self) -> dict[str, float]:
        """Return the mean of each loss over the held-out data; empty for methods that are not trained."""
        if not self._model.stages():
            return {}
        self._model.load_state_dict(self._training.averaged_weights())
        generator = torch.Generator(self._device).manual_seed(self._seed)
        sums: dict[str, float] = {}
        for rows in torch.split(torch.arange(len(self._data), device=self._device), VALIDATION_BATCH):
            for name, loss in self._model.loss(self._data[rows], generator).parts.items():
                sums[name] = sums.get(name, 0.0) + float(loss) * len(rows)
        return {VALIDATION_PREFIX + name: total / len(self._data) for name, total in sums.items()}


def choose_rows(data: Table[Rows], most: int, *, seed: int) -> Rows:
    """Return up to `most` random rows, the same ones for the same seed."""
    return data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]]
