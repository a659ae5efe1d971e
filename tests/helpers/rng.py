"""Seeded random generators for tests."""

import torch

from nsde_policy.methods.base import BatchRng


def make_rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_batch_rng(n: int, seed: int = 0) -> BatchRng:
    """Make one generator for each of n rows, with consecutive seeds."""
    return BatchRng([make_rng(seed + i) for i in range(n)])
