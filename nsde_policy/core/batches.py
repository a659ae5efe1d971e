"""Batches of training data: pairs of states, and windows of states and actions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


class TensorRows:
    """Base of dataclasses whose fields are tensors, or tuples of tensors, with the same number of rows."""

    def __len__(self) -> int:
        return len(self.tensors()[0])

    def __getitem__(self, index: Tensor) -> Self:
        return self.map(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> Self:
        """Copy to another device."""
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with each tensor changed."""
        values = vars(self).values()
        return type(self)(*(tuple(map(change, v)) if isinstance(v, tuple) else change(v) for v in values))

    def tensors(self) -> list[Tensor]:
        """List all tensors."""
        values = vars(self).values()
        return [tensor for v in values for tensor in (v if isinstance(v, tuple) else (v,))]


@dataclass(frozen=True)
class Transitions(TensorRows):
    """Observed pairs of states; with a history of h states, x is (current, previous, …) side by side."""

    x: Tensor
    """State and its history, newest first, (n, h·d)."""
    x_next: Tensor
    """The state one policy period later, (n, d)."""
    dt: Tensor
    """Time between the two, (n, 1)."""
    weight: Tensor
    """Weight of each dimension of the pair, (n, d): 1, another for final actions, 0 if unknown."""


@dataclass(frozen=True)
class Windows(TensorRows):
    """Recent states and the actions from the oldest of them on."""

    states: Tensor
    """States x = (observation, the action before it), newest first, (n, history, d)."""
    actions: Tensor
    """Actions in time, the one commanded in `states[:, 0]` at history − 1, (n, horizon, act_dim)."""
