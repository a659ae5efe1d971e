"""What the trainer knows of a model, its losses and stages; and what a policy knows of it, its plans."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from nsde_policy.config import ModelConfig, Sampling

Batch = TypeVar("Batch", contravariant=True)


@dataclass(frozen=True)
class LossParts:
    """The losses of one batch by name, each a scalar on the model's device."""

    parts: Mapping[str, Tensor]

    def total(self, names: tuple[str, ...]) -> Tensor:
        """The sum of the named parts, which is what a stage minimises."""
        return torch.stack([self.parts[name] for name in names]).sum()


@dataclass(frozen=True)
class Stage:
    """A stretch of training: these losses, these parameters, nothing else."""

    losses: tuple[str, ...]
    """Names of the parts that are summed."""
    parameters: tuple[nn.Parameter, ...]
    """What learns from them."""


class AbstractModel(nn.Module, abc.ABC, Generic[Batch]):
    """What can be trained."""

    @abc.abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> LossParts:
        """The losses of a batch: no host synchronisation, no control flow that depends on data.

        All randomness comes from `generator`, on the batch's device.
        """

    @abc.abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """What to train, one stage after the other; nothing where a method only remembers."""


class Draws:
    """Random numbers for rows that must not know of each other: each row has a generator of its own."""

    def __init__(self, generators: Sequence[torch.Generator], device: torch.device | str = "cpu") -> None:
        self._generators, self._device = tuple(generators), device

    def __len__(self) -> int:
        return len(self._generators)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, (rows, *shape)."""
        rows = [torch.randn(shape, generator=generator) for generator in self._generators]
        return torch.stack(rows).to(self._device)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1), (rows, *shape)."""
        rows = [torch.rand(shape, generator=generator) for generator in self._generators]
        return torch.stack(rows).to(self._device)


class AbstractPolicyModel(AbstractModel[Batch]):
    """A method that can be asked for actions. One file per method; `methods.py` names it.

    It is shown states x = (observation, the action before it) in their own units, the newest first: the
    state it is asked in, then those before. Its constructor is `(config, layout, *, generator)`.
    """

    config: ModelConfig

    @abc.abstractmethod
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        """The next actions, in their own units, (rows, steps, act_dim), for states (rows, history, d).

        A row's answer depends on that row alone, its randomness on that row's draws. `sampling` stands in
        for `config.sampling`.
        """

    @abc.abstractmethod
    def calls(self, steps: int, sampling: Sampling | None = None) -> int:
        """Network calls, one after the other, that `plan` makes for so many actions."""

    def prepare(self, data: Batch) -> None:
        """Look at all the training data once, before the first step, such as to place bins."""

    def make_room(self, weights: Mapping[str, Tensor]) -> None:
        """Make room for weights whose sizes depend on the training data, before they are loaded."""
