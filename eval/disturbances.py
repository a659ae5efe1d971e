"""Disturbances of an episode: late plans, noisy observations, a push."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from nsde_policy.config import BaseConfig

PUSH_PERIODS = (10, 60)
"""First and last control period (exclusive) at which a push may come."""


@dataclass(frozen=True)
class Condition(BaseConfig):
    """Strength of each disturbance; none by default."""

    latency_steps: Annotated[int, Meta(ge=0, le=100)] = 0
    """Control periods from an observation to the plan made from it."""
    obs_noise: Annotated[float, Meta(ge=0, lt=100)] = 0.0
    """Noise on every observation, in standard deviations of its change over one period."""
    push: Annotated[float, Meta(ge=0, lt=1e6)] = 0.0
    """How far the environment's `push` moves an object at a random moment, in units of the task."""


class Disturbances:
    """Random disturbances of one episode, drawn from its seed alone."""

    def __init__(self, condition: Condition, seed: int, increment_std: np.ndarray) -> None:
        self._noise = condition.obs_noise * increment_std
        self._noise_rng, self._push_rng = (np.random.default_rng([seed, stream]) for stream in (1, 2))
        self._push_period = int(self._push_rng.integers(*PUSH_PERIODS)) if condition.push else None

    def add_noise(self, obs: np.ndarray) -> np.ndarray:
        """Return an observation as the policy sees it."""
        if not self._noise.any():
            return obs
        return obs + self._noise * self._noise_rng.standard_normal(obs.shape)

    def push_rng(self, period: int) -> np.random.Generator | None:
        """Return the generator of the push in this control period, or None if the block is not pushed."""
        return self._push_rng if period == self._push_period else None
