"""Losses of processes that share a batch, compared with the loss of the whole batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nsde_policy.methods.base import TrainableModel
from nsde_policy.training.distributed import SharedRows
from tests.helpers.rng import make_rng


def assert_shares_add_up(
    model: TrainableModel[Any], whole: object, shares: Sequence[object], *, rows: int
) -> None:
    """Check that losses and gradients are the means over processes with `rows` rows of a batch each."""
    expected = measure_gradient(model, whole)
    found = []
    for rank, share in enumerate(shares):
        with SharedRows(rank=rank, ranks=len(shares), rows=rows):
            found.append(measure_gradient(model, share))
    for parts, value in zip(zip(*found, strict=True), expected, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), value, rtol=1e-4, atol=1e-5)


def measure_gradient(model: TrainableModel[Any], batch: object) -> list[Tensor]:
    """Return the losses of a batch, and the gradients of all weights."""
    model.zero_grad()
    parts = model.loss(batch, make_rng()).parts
    if parts:
        torch.stack([*parts.values()]).sum().backward()  # type: ignore[no-untyped-call]
    grads = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    return [*(part.detach() for part in parts.values()), *grads]
