"""Split demonstrations into episodes for training and held-out ones."""

import numpy as np

from nsde_policy.bounds import Fraction, SeedNumber
from nsde_policy.config import check_value
from nsde_policy.errors import ConfigError

from .types import Demonstrations

FEWEST_EPISODES = 6
"""Held-out episodes that a verdict needs: no interval of fewer differences excludes 0 at the 5 % level."""
FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Fractions that are suggested."""


def split_episodes(
    demos: Demonstrations, fraction: float, *, seed: int
) -> tuple[Demonstrations, tuple[int, ...]]:
    """Hold out a random fraction of the demonstrations, at least one, the same ones for the same seed.

    Returns the rest, and the indices of the held-out ones.
    """
    check_value("--validation", fraction, Fraction)
    check_value("--seed", seed, SeedNumber)
    if fraction == 0:
        return demos, ()
    n = len(demos)
    if n < 2:
        raise ConfigError(
            f"--validation needs at least 2 episodes, {demos.source} holds {n}; record more or leave it out"
        )
    count = count_held_out(n, fraction)
    order = np.random.default_rng(seed).permutation(n)
    held_out = tuple(sorted(order[:count].tolist()))
    return demos.select(sorted(order[count:].tolist())), held_out


def count_held_out(episodes: int, fraction: float) -> int:
    """Return how many of two or more episodes a fraction holds out."""
    return min(max(round(fraction * episodes), 1), episodes - 1)


def suggest_fraction(episodes: int) -> float | None:
    """Return the smallest usual fraction that holds out enough episodes for a verdict, None if none does."""
    if episodes < 2 * FEWEST_EPISODES:
        return None
    return next(each for each in FRACTIONS if count_held_out(episodes, each) >= FEWEST_EPISODES)


def advise_validation(episodes: int) -> str:
    """Say in a few words what gives enough held-out episodes for a verdict."""
    fraction = suggest_fraction(episodes)
    if fraction is None:
        return f"record at least {2 * FEWEST_EPISODES} episodes"
    return f"train with --validation {fraction:g}"
