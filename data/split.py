"""Split demonstrations into episodes for training and held-out ones."""

from typing import NamedTuple

import numpy as np

from nsde_policy.bounds import Fraction, SeedNumber
from nsde_policy.config import check_value
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import ConfigError


class EpisodeSplit(NamedTuple):
    """Demonstrations for training and those held out."""

    training: Demonstrations
    validation: Demonstrations | None
    """Held-out demonstrations; None if all are used for training."""
    held_out: tuple[int, ...]


def split_episodes(
    demos: Demonstrations, fraction: float, *, seed: int, flag: str = "--validation"
) -> EpisodeSplit:
    """Hold out a random fraction of the demonstrations, at least one, the same ones for the same seed.

    `flag` is what errors call the fraction.
    """
    check_value(flag, fraction, Fraction)
    check_value("--seed", seed, SeedNumber)
    if fraction == 0:
        return EpisodeSplit(demos, None, ())
    n = len(demos)
    if n < 2:
        raise ConfigError(
            f"{flag} needs at least 2 episodes, {demos.source} holds {n}; record more or leave it out"
        )
    count = min(max(round(fraction * n), 1), n - 1)
    order = np.random.default_rng(seed).permutation(n)
    held_out = tuple(sorted(order[:count].tolist()))
    rest = sorted(order[count:].tolist())
    return EpisodeSplit(demos.select(rest), demos.select(held_out), held_out)
