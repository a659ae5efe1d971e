"""Seeded random generators for tests."""

import torch

from nsde_policy.methods.base import Draws


def make_rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_draws(n: int, seed: int = 0) -> Draws:
    """Make the draws of n rows, with consecutive seeds."""
    return Draws([make_rng(seed + i) for i in range(n)])
