"""The noise-prediction network of Diffusion Policy (Chi et al. 2023), ε̂(x_t, t, o).

Observations o, (rows, history, features), oldest first, and noise levels t, (k,), enter separately. A plan
therefore embeds the observations once (`embed_observations`) and all noise levels at once (`embed_levels`),
and only `forward` runs at each step: on actions x_t (rows, horizon, act_dim), with one level, or one per row.

Initial weights come from torch's current random state: build them inside `weights_from(generator)`.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Size
from nsde_policy.config import BaseConfig, require


@dataclass(frozen=True)
class UNetConfig(BaseConfig):
    """Settings of the U-Net."""

    channels: tuple[Size, ...] = (256, 512, 1024)
    """Channels of each level; every level but the last halves time."""
    kernel: Size = 5
    """Kernel size of the convolutions over time, odd."""
    groups: Size = 8
    """Groups of GroupNorm."""
    step_embedding: Size = 256
    """Size of the embedding of the noise level."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, min(self.channels, default=0) >= 1, "channels must name positive sizes")
        require(self, self.kernel % 2 == 1, f"need an odd kernel, got {self.kernel}")
        whole = all(c % self.groups == 0 for c in self.channels)
        require(self, whole, f"channels {self.channels} must be multiples of groups, {self.groups}")
        even = self.step_embedding >= 4 and self.step_embedding % 2 == 0
        require(self, even, f"need an even step_embedding >= 4, got {self.step_embedding}")


class Sinusoid(nn.Module):
    """Sinusoidal embedding with dim / 2 frequencies from 1 down to 1/10 000: sines, then cosines."""

    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        half = dim // 2
        decay = torch.arange(half) * (-math.log(10_000) / (half - 1))
        self.register_buffer("frequencies", decay.exp(), persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        """Map levels (k,) to embeddings (k, dim)."""
        phase = t[:, None] * self.frequencies
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


class TimeConv(nn.Conv1d):
    """A convolution over time; on CUDA computed as a 2-D convolution, which has faster kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (rows, inputs, time) to (rows, outputs, time)."""
        if not x.is_cuda:
            return super().forward(x)
        wide, weight = (
            tensor[:, :, None].to(memory_format=torch.channels_last) for tensor in (x, self.weight)
        )
        stride, padding = (1, self.stride[0]), (0, int(self.padding[0]))
        return functional.conv2d(wide, weight, self.bias, stride=stride, padding=padding)[:, :, 0]


class ConvBlock(nn.Sequential):
    """Convolution over time that keeps its length, GroupNorm, Mish."""

    def __init__(self, inputs: int, outputs: int, config: UNetConfig) -> None:
        super().__init__(
            TimeConv(inputs, outputs, config.kernel, padding=config.kernel // 2),
            nn.GroupNorm(config.groups, outputs),
            nn.Mish(),
        )


class FiLMBlock(nn.Module):
    """Two convolutions with a residual; between them each channel is scaled and shifted (FiLM)."""

    def __init__(self, inputs: int, outputs: int, config: UNetConfig) -> None:
        super().__init__()
        self.channels = outputs
        self.before = ConvBlock(inputs, outputs, config)
        self.after = ConvBlock(outputs, outputs, config)
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, film: Tensor) -> Tensor:
        """Map x (rows, inputs, time) and film (rows, 2·outputs: scales, shifts) to (rows, outputs, time)."""
        scale, shift = film[..., None].chunk(2, dim=1)
        out: Tensor = self.after(torch.addcmul(shift, scale, self.before(x))) + self.skip(x)
        return out


class ConditionalUNet(nn.Module):
    """A U-Net over time, conditioned on observations and noise level by FiLM in every block.

    Each level halves the time resolution; as in the original, the skip of the first level is not used on the
    way up. All scales and shifts come from one linear layer, which concatenates the original's one layer per
    block.
    """

    def __init__(self, config: UNetConfig, act_dim: int, obs_dim: int) -> None:
        super().__init__()

        def pair(inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList([FiLMBlock(inputs, outputs, config), FiLMBlock(outputs, outputs, config)])

        channels = config.channels
        step_dim = config.step_embedding
        levels = list(zip((act_dim, *channels), channels, strict=False))
        self.step = nn.Sequential(
            Sinusoid(step_dim),
            nn.Linear(step_dim, 4 * step_dim),
            nn.Mish(),
            nn.Linear(4 * step_dim, step_dim),
        )
        self.down = nn.ModuleList(pair(inputs, outputs) for inputs, outputs in levels)
        self.shrink = nn.ModuleList(TimeConv(c, c, 3, stride=2, padding=1) for c in channels[:-1])
        self.middle = pair(channels[-1], channels[-1])
        self.up = nn.ModuleList(pair(2 * outputs, inputs) for inputs, outputs in reversed(levels[1:]))
        self.grow = nn.ModuleList(
            nn.ConvTranspose1d(c, c, 4, stride=2, padding=1) for c in reversed(channels[:-1])
        )
        self.last = nn.Sequential(
            ConvBlock(channels[0], channels[0], config),
            nn.Conv1d(channels[0], act_dim, 1),
        )
        self.films = [2 * block.channels for block in self.modules() if isinstance(block, FiLMBlock)]
        self.film = nn.Linear(step_dim + obs_dim, sum(self.films))
        self.step_dim = step_dim

    def embed_observations(self, obs: Tensor) -> Tensor:
        """Compute the observations' part of all scales and shifts, (rows, channels of all blocks)."""
        return functional.linear(functional.mish(obs.flatten(1)), self.film.weight[:, self.step_dim :])

    def embed_levels(self, t: Tensor) -> Tensor:
        """Compute the noise levels' part of all scales and shifts, (k, channels of all blocks)."""
        embedded = functional.mish(self.step(t))
        return functional.linear(embedded, self.film.weight[:, : self.step_dim], self.film.bias)

    def forward(self, noisy: Tensor, level: Tensor, context: Tensor) -> Tensor:
        """Apply the down path, the middle and the up path."""
        films = iter(torch.split(level + context, self.films, dim=1))
        x, skips = noisy.transpose(1, 2), []
        for depth, blocks in enumerate(self.down):
            x = _apply_blocks(blocks, x, next(films), next(films))
            skips.append(x)
            if depth < len(self.shrink):
                x = self.shrink[depth](x)
        x = _apply_blocks(self.middle, x, next(films), next(films))
        for blocks, grow in zip(self.up, self.grow, strict=True):
            x = grow(_apply_blocks(blocks, torch.cat([x, skips.pop()], dim=1), next(films), next(films)))
        out: Tensor = self.last(x)
        return out.transpose(1, 2)


def _apply_blocks(blocks: nn.Module, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    one, two = cast(nn.ModuleList, blocks)
    out: Tensor = two(one(x, first), second)
    return out
