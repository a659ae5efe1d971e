"""What makes an episode harder: late plans, blurred observations, a hand that moves the block."""

from dataclasses import dataclass

import numpy as np

from nsde_policy.config import BaseConfig, require

PUSH_PERIODS = (10, 60)
"""Control periods between which a push comes, the second excluded."""


@dataclass(frozen=True)
class Condition(BaseConfig):
    """What an episode has to cope with; by default nothing."""

    latency_steps: int = 0
    """Control periods from an observation to the plan made from it."""
    obs_noise: float = 0.0
    """Noise on every observation, in standard deviations of its change over one period."""
    push: float = 0.0
    """How far the block is moved at a random moment, in units of the task."""

    def __post_init__(self) -> None:
        require(
            self, 0 <= self.latency_steps <= 100, f"need 0 <= latency_steps <= 100, got {self.latency_steps}"
        )
        require(self, 0 <= self.obs_noise < 100, f"need 0 <= obs_noise < 100, got {self.obs_noise}")
        require(self, 0 <= self.push < 1e6, f"need push >= 0, got {self.push}")


class Disturbances:
    """The troubles of one episode, drawn from its seed and nothing else."""

    def __init__(self, condition: Condition, seed: int, increment_std: np.ndarray) -> None:
        self._noise = condition.obs_noise * increment_std
        self._noise_rng, self._push_rng = (np.random.default_rng([seed, stream]) for stream in (1, 2))
        self._push_at = int(self._push_rng.integers(*PUSH_PERIODS)) if condition.push else None

    def seen(self, obs: np.ndarray) -> np.ndarray:
        """An observation as it reaches the policy."""
        if not self._noise.any():
            return obs
        return obs + self._noise * self._noise_rng.standard_normal(obs.shape)

    def push_at(self, period: int) -> np.random.Generator | None:
        """Where the push of this control period is drawn from; None where there is none."""
        return self._push_rng if period == self._push_at else None
