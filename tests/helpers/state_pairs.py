"""Pairs of consecutive states for tests."""

import torch
from torch import Tensor

from nsde_policy.core.batches import Transitions
from nsde_policy.core.targets import stack_history


def pair_states(path: Tensor, *, dt: float = 1.0, history: int = 1) -> Transitions:
    """Return every pair of consecutive states of a batch of paths (steps + 1, n, d)."""
    steps, n, dim = len(path) - 1, *path.shape[1:]
    x_next = path[1:].reshape(-1, dim)
    return Transitions(
        x=stack_history(path[:-1], history).reshape(-1, history * dim),
        x_next=x_next,
        dt=torch.full((steps * n, 1), dt, dtype=path.dtype),
        weight=torch.ones_like(x_next),
    )
