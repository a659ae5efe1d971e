"""What the trainer knows of a model: its losses, and what is trained when."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

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
    """A method: a loss for training; how it samples is its own affair."""

    @abc.abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> LossParts:
        """The losses of a batch: no host synchronisation, no control flow that depends on data.

        All randomness comes from `generator`, on the batch's device.
        """

    @abc.abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """What to train, one stage after the other."""
