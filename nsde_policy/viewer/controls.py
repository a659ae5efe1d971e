"""What a person can turn while a policy runs: each control with its range."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nsde_policy.config import BaseConfig, Sampling
from nsde_policy.errors import ProtocolError
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.neural_sde.config import SamplingConfig


class Range(NamedTuple):
    """The ends of a slider, and its step."""

    low: float
    high: float
    step: float


RANGES: Mapping[str, Range] = {
    "alpha": Range(0.0, 3.0, 0.05),
    "diffusion": Range(0.0, 4.0, 0.05),
    "chunk": Range(1, 32, 1),
    "paths": Range(0, 64, 1),
    "speed": Range(0.25, 4.0, 0.25),
    "field": Range(0, 1, 1),
    "together": Range(0, 1, 1),
    "onward": Range(0, 1, 1),
}


@dataclass(frozen=True)
class Controls(BaseConfig):
    """How the policies are run, and what is drawn of them."""

    alpha: float = 0.5
    """Strength of a Neural SDE's denoiser, α."""
    diffusion: float = 1.0
    """Factor on a Neural SDE's noise, g."""
    chunk: int = 8
    """Actions executed before planning again (T_a); methods that plan fewer plan as many as they can."""
    paths: int = 24
    """Sampled futures that are drawn."""
    speed: float = 1.0
    """Simulated seconds per second."""
    field: bool = False
    """Whether the drift around the agent is drawn."""
    together: bool = True
    """Whether a hand on one table is a hand on both."""
    onward: bool = False
    """Whether the next seed follows a success."""

    @classmethod
    def of(cls, policy: Policy) -> "Controls":
        """As a policy was trained to be used."""
        sampling = policy.model.config.sampling
        if not isinstance(sampling, SamplingConfig):
            return cls(chunk=policy.chunk)
        return cls(alpha=sampling.alpha, diffusion=sampling.diffusion, chunk=policy.chunk)

    def turned(self, name: str, value: float) -> "Controls":
        """The same but for one control, kept in its range."""
        low, high, _ = RANGES[name]
        if not low <= value <= high:  # also where it is no number
            raise ProtocolError(f"{name} lies from {low:g} to {high:g}, got {value}")
        kind = type(getattr(Controls, name))
        return dataclasses.replace(self, **{name: kind(value)})

    def sampling(self, policy: Policy) -> Sampling:
        """How this policy draws its actions under these controls; only a Neural SDE's can be turned."""
        own = policy.model.config.sampling
        if not isinstance(own, SamplingConfig):
            return own
        return dataclasses.replace(own, alpha=self.alpha, diffusion=self.diffusion)

    def chunk_of(self, policy: Policy) -> int:
        """Actions of one plan of this policy."""
        return min(self.chunk, policy.model.config.longest_chunk or self.chunk)
