"""Conditional generative models with one MLP, DDIM and Rectified Flow: they see c and generate z.

Both learn to answer at every level of noise and sample by repeated calls. Everything is in network units, in
which z is of order one.
"""

import abc
import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsde_policy.config import NetworkConfig
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.methods.neural_sde.equation import build_mlp

OCTAVES = 4
"""Frequencies by which a network sees the level of noise."""


@dataclass(frozen=True)
class Pairs:
    """What is seen and what should be generated; rows are drawn by the trainer."""

    condition: Tensor
    """c, (n, m); m may be 0."""
    target: Tensor
    """z, (n, k)."""

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: Tensor) -> "Pairs":
        return Pairs(self.condition[index], self.target[index])

    def to(self, device: torch.device | str) -> "Pairs":
        """The same on another device."""
        return Pairs(self.condition.to(device), self.target.to(device))


class ConditionalSampler(TrainableModel[Pairs]):
    """A law of z given c, held by one network."""

    def __init__(
        self, condition: int, target: int, config: NetworkConfig, *, calls: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.size, self.calls = target, calls
        self.network = build_mlp(config, condition + target + 2 * OCTAVES, target, generator)

    def answer(self, condition: Tensor, z: Tensor, level: Tensor) -> Tensor:
        """The network at noisy z (n, k), with the level of noise (n, 1) as sines and cosines; (n, k)."""
        phase = level * math.pi * 2.0 ** torch.arange(OCTAVES, device=level.device)
        answer: Tensor = self.network(torch.cat([condition, z, phase.sin(), phase.cos()], dim=-1))
        return answer

    def stages(self) -> tuple[Stage, ...]:
        """One network, one loss."""
        return (Stage(("sampler",), tuple(self.parameters())),)

    def sample(self, condition: Tensor, generator: torch.Generator) -> Tensor:
        """One z for each row of c, (n, k), in `calls` calls of the network."""
        z = torch.randn(len(condition), self.size, generator=generator)
        return self.refine(condition, z)

    @abc.abstractmethod
    def refine(self, condition: Tensor, z: Tensor) -> Tensor:
        """Turn standard normal z (n, k) into samples."""


class DDIM(ConditionalSampler):
    """Denoising diffusion, sampled without noise (Song et al. 2021, η = 0).

    z_t = √ᾱ z + √(1 − ᾱ) ε with the cosine schedule of Nichol and Dhariwal over `LEVELS` levels. The network
    predicts z, which served this baseline better than predicting ε.
    """

    LEVELS = 100
    schedule: Tensor

    def __init__(
        self, condition: int, target: int, config: NetworkConfig, *, calls: int, generator: torch.Generator
    ) -> None:
        super().__init__(condition, target, config, calls=calls, generator=generator)
        angle = (torch.linspace(0, 1, self.LEVELS + 1) + 0.008) / 1.008 * (math.pi / 2)
        self.register_buffer("schedule", (angle.cos() / angle[0].cos()).square().clamp(min=1e-3))

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> LossParts:
        """‖ẑ(z_t, c, t) − z‖² at a uniform level."""
        z = batch.target
        level = torch.randint(1, self.LEVELS + 1, (len(z), 1), generator=generator, device=z.device)
        noise = torch.randn(z.shape, generator=generator, device=z.device)
        kept = self.schedule[level]
        noisy = kept.sqrt() * z + (1 - kept).sqrt() * noise
        clean = self.answer(batch.condition, noisy, level / self.LEVELS)
        return LossParts({"sampler": nn.functional.mse_loss(clean, z)})

    def refine(self, condition: Tensor, z: Tensor) -> Tensor:
        """Through `calls` evenly spaced levels down to none."""
        levels = torch.linspace(self.LEVELS, 0, self.calls + 1).round().long().tolist()
        for now, then in itertools.pairwise(levels):
            kept, later = self.schedule[now], self.schedule[then]
            clean = self.answer(condition, z, torch.full((len(z), 1), now / self.LEVELS))
            noise = (z - kept.sqrt() * clean) / (1 - kept).sqrt()
            z = later.sqrt() * clean + (1 - later).sqrt() * noise
        return z


class RectifiedFlow(ConditionalSampler):
    """Straight lines from noise to data (Liu et al. 2023): z_t = (1 − t) ε + t z, dz/dt = z − ε."""

    def loss(self, batch: Pairs, generator: torch.Generator | None = None) -> LossParts:
        """‖v(z_t, c, t) − (z − ε)‖² at a uniform time."""
        z = batch.target
        time = torch.rand((len(z), 1), generator=generator, device=z.device)
        noise = torch.randn(z.shape, generator=generator, device=z.device)
        velocity = self.answer(batch.condition, torch.lerp(noise, z, time), time)
        return LossParts({"sampler": nn.functional.mse_loss(velocity, z - noise)})

    def refine(self, condition: Tensor, z: Tensor) -> Tensor:
        """Euler's method with `calls` steps."""
        for call in range(self.calls):
            time = torch.full((len(z), 1), call / self.calls)
            z = z + self.answer(condition, z, time) / self.calls
        return z
