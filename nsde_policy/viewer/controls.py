"""Settings that the page can change while a policy runs, with their ranges."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from nsde_policy.config import BaseConfig, Sampling
from nsde_policy.errors import RemoteError
from nsde_policy.policy.policy import Policy

RANGES: Mapping[str, tuple[float, float, float]] = {
    "alpha": (0.0, 3.0, 0.05),
    "diffusion": (0.0, 4.0, 0.05),
    "chunk": (1, 32, 1),
    "paths": (0, 64, 1),
    "speed": (0.25, 4.0, 0.25),
    "obs_noise": (0.0, 3.0, 0.25),
    "latency_steps": (0, 8, 1),
}
"""Lowest value, highest value and step of each slider."""
VIEW_CONTROLS = {"paths", "speed"}
"""Controls that change no plan."""
SAMPLING_CONTROLS = ("alpha", "diffusion")
"""Controls of how actions are sampled; they apply to policies that have settings of these names to adjust."""


@dataclass(frozen=True)
class Controls(BaseConfig):
    """Settings of the policies and of what is drawn."""

    alpha: float = 0.5
    """Strength of a Neural SDE's denoiser, α."""
    diffusion: float = 1.0
    """Factor on a Neural SDE's noise, g."""
    chunk: int = 8
    """Actions executed before planning again (T_a), at most the longest chunk of the method."""
    paths: int = 24
    """Sampled paths to draw."""
    speed: float = 1.0
    """Simulated seconds per second."""
    obs_noise: float = 0.0
    """Noise on every observation, in standard deviations of its change over one period."""
    latency_steps: int = 0
    """Control periods from an observation to the plan made from it."""

    @classmethod
    def from_policy(cls, policy: Policy) -> "Controls":
        """Return the settings that a policy was trained for."""
        sampling = policy.sampling.to_dict()
        return cls(
            chunk=policy.chunk, **{name: sampling[name] for name in SAMPLING_CONTROLS if name in sampling}
        )

    def with_value(self, name: str, value: float) -> "Controls":
        """Return a copy with one control changed; raise `RemoteError` if it is unknown or out of range."""
        if name not in RANGES:
            raise RemoteError(f"unknown control {name!r:.40}; expected one of {', '.join(RANGES)}")
        low, high, _ = RANGES[name]
        if not low <= value <= high:  # also true for NaN
            raise RemoteError(f"{name} must be from {low:g} to {high:g}, got {value}")
        return dataclasses.replace(self, **{name: type(getattr(Controls, name))(value)})

    def sampling_for(self, policy: Policy) -> Sampling:
        """Return the sampling settings of a policy, with the controls applied that it has."""
        adjustable = policy.model.config.adjustable_sampling
        changes = {name: getattr(self, name) for name in SAMPLING_CONTROLS if name in adjustable}
        return dataclasses.replace(policy.sampling, **changes)

    def chunk_for(self, policy: Policy) -> int:
        """Return the number of actions that a policy executes of one plan."""
        return min(self.chunk, policy.model.config.longest_chunk or self.chunk)
