"""Conditional generative models with one MLP, DDIM and Rectified Flow: they see c and generate z.

Both are trained at every noise level and sample by repeated network calls. All values are in network units,
in which z is of order one.
"""

import abc
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsde_policy.config import NetworkConfig
from nsde_policy.core.networks import build_mlp
from nsde_policy.core.targets import TensorRows
from nsde_policy.methods.base import LossParts, Stage, TrainableModel

NOISE_FREQUENCIES = 4
"""Sines and cosines by which a network sees the noise level."""


@dataclass(frozen=True)
class Pairs(TensorRows):
    """Training data: conditions and targets, row by row."""

    condition: Tensor
    """c, (n, m); m may be 0."""
    target: Tensor
    """Latent variables z, (n, k)."""


class ConditionalSampler(TrainableModel[Pairs]):
    """Distribution of z given c, represented by one network."""

    def __init__(
        self, condition: int, target: int, config: NetworkConfig, *, calls: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.size, self.calls = target, calls
        self.network = build_mlp(config, condition + target + 2 * NOISE_FREQUENCIES, target, generator)

    def predict(self, condition: Tensor, z: Tensor, level: Tensor) -> Tensor:
        """Call the network at noisy z (n, k) and noise level (n, 1); (n, k)."""
        phase = level * math.pi * 2.0 ** torch.arange(NOISE_FREQUENCIES, device=level.device)
        prediction: Tensor = self.network(torch.cat([condition, z, phase.sin(), phase.cos()], dim=-1))
        return prediction

    def stages(self) -> tuple[Stage, ...]:
        """Return the only training stage: one network, one loss."""
        return (Stage(("sampler",), tuple(self.parameters())),)

    def sample(self, condition: Tensor, generator: torch.Generator) -> Tensor:
        """Sample one z for each row of c, (n, k), with `calls` network calls."""
        return self.denoise(condition, torch.randn(len(condition), self.size, generator=generator))

    @abc.abstractmethod
    def denoise(self, condition: Tensor, z: Tensor) -> Tensor:
        """Turn standard normal z (n, k) into samples."""


class DDIM(ConditionalSampler):
    """Denoising diffusion, sampled without noise (Song et al. 2021, η = 0).

    z_t = √ᾱ z + √(1 − ᾱ) ε with the cosine schedule of Nichol and Dhariwal over `LEVELS` levels. The network
    predicts z, which served this baseline better than predicting ε.
    """

    LEVELS = 100
    schedule: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        angle = (torch.linspace(0, 1, self.LEVELS + 1) + 0.008) / 1.008 * (math.pi / 2)
        self.register_buffer("schedule", (angle.cos() / angle[0].cos()).square().clamp(min=1e-3))

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> LossParts:
        """Compute ‖ẑ(z_t, c, t) − z‖² at a uniformly drawn level."""
        z = batch.target
        level = torch.randint(1, self.LEVELS + 1, (len(z), 1), generator=generator, device=z.device)
        noise = torch.randn(z.shape, generator=generator, device=z.device)
        signal = self.schedule[level]
        noisy = signal.sqrt() * z + (1 - signal).sqrt() * noise
        clean = self.predict(batch.condition, noisy, level / self.LEVELS)
        return LossParts({"sampler": nn.functional.mse_loss(clean, z)})

    def denoise(self, condition: Tensor, z: Tensor) -> Tensor:
        """Step through `calls` evenly spaced levels down to zero."""
        levels = torch.linspace(self.LEVELS, 0, self.calls + 1).round().long().tolist()
        for level, next_level in itertools.pairwise(levels):
            signal, next_signal = self.schedule[level], self.schedule[next_level]
            clean = self.predict(condition, z, torch.full((len(z), 1), level / self.LEVELS))
            noise = (z - signal.sqrt() * clean) / (1 - signal).sqrt()
            z = next_signal.sqrt() * clean + (1 - next_signal).sqrt() * noise
        return z


class RectifiedFlow(ConditionalSampler):
    """Straight lines from noise to data (Liu et al. 2023): z_t = (1 − t) ε + t z, dz/dt = z − ε."""

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> LossParts:
        """Compute ‖v(z_t, c, t) − (z − ε)‖² at a uniformly drawn time."""
        z = batch.target
        time = torch.rand((len(z), 1), generator=generator, device=z.device)
        noise = torch.randn(z.shape, generator=generator, device=z.device)
        velocity = self.predict(batch.condition, torch.lerp(noise, z, time), time)
        return LossParts({"sampler": nn.functional.mse_loss(velocity, z - noise)})

    def denoise(self, condition: Tensor, z: Tensor) -> Tensor:
        """Integrate the flow with `calls` Euler steps."""
        for call in range(self.calls):
            time = torch.full((len(z), 1), call / self.calls)
            z = z + self.predict(condition, z, time) / self.calls
        return z
