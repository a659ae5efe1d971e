"""The two noise-prediction networks of Diffusion Policy (Chi et al. 2023), ε̂(x_t, t, o).

In both, observations o, (rows, history, features), oldest first, and noise levels t, (k,), enter separately.
A plan therefore embeds the observations once (`embed_observations`) and all noise levels at once
(`embed_levels`), and only `forward` runs at each step: on actions x_t (rows, horizon, act_dim), with one
level, or one per row.

Initial weights come from torch's current random state: build them inside `weights_from(generator)`.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Fraction, Size
from nsde_policy.config import BaseConfig, require
from nsde_policy.core.networks import dropout_mask
from nsde_policy.errors import ConfigError


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


@dataclass(frozen=True)
class TransformerConfig(BaseConfig):
    """Size of the transformer."""

    layers: Size = 8
    """Number of decoder layers."""
    heads: Size = 4
    """Attention heads per layer."""
    embedding: Size = 256
    """Dimensions of a token."""
    dropout: Fraction = 0.3
    """Dropout probability of attention weights and layer outputs in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.embedding >= 4 and self.embedding % 2 == 0 and self.embedding % self.heads == 0
        require(self, fits, f"embedding must be even, >= 4 and a multiple of heads, got {self.embedding}")


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

    def forward(
        self, noisy: Tensor, level: Tensor, context: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
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


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to the context and an MLP, each with a residual and pre-norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.embedding
        self.heads = config.heads
        self.keep = 1 - config.dropout
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.among = nn.Linear(width, 3 * width)
        self.among_out = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.query_out = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(
        self,
        x: Tensor,
        known: tuple[Tensor, Tensor],
        masks: tuple[Tensor, Tensor],
        generator: torch.Generator | None,
    ) -> Tensor:
        """Apply the layer to action tokens x (rows, time, width).

        `known` are keys and values of the context, (rows, heads, tokens, width / heads); `masks` say which
        tokens an action attends to: actions (time, time) and context (time, tokens).
        """
        queries, keys, values = (self._split(part) for part in self.among(self.norms[0](x)).chunk(3, dim=-1))
        x = x + self._drop(
            self.among_out(self._attend(queries, keys, values, masks[0], generator)), generator
        )
        queries = self._split(self.query(self.norms[1](x)))
        x = x + self._drop(self.query_out(self._attend(queries, *known, masks[1], generator)), generator)
        hidden = self._drop(functional.gelu(self.wide(self.norms[2](x))), generator)
        return x + self._drop(self.narrow(hidden), generator)

    def _split(self, x: Tensor) -> Tensor:
        """Map (rows, time, width) to (rows, heads, time, width / heads)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        if generator is None or self.keep == 1:
            out = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        else:
            scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
            weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
            out = self._drop(weights, generator) @ values
        return out.transpose(1, 2).flatten(-2)

    def _drop(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is None or self.keep == 1:
            return x
        return x * dropout_mask(tuple(x.shape), self.keep, x, generator)


class DenoisingTransformer(nn.Module):
    """A causal transformer over action tokens with cross-attention to the noise level and the observations.

    An action does not attend to later observations. Keys and values of the context come from one linear layer
    for all decoder layers, which concatenates the usual one per layer.
    """

    sees_actions: Tensor
    sees_known: Tensor

    def __init__(
        self, config: TransformerConfig, act_dim: int, obs_dim: int, history: int, horizon: int
    ) -> None:
        super().__init__()
        self.config = config
        width = config.embedding
        self.action = nn.Linear(act_dim, width)
        self.action_place = nn.Parameter(torch.empty(horizon, width))
        self.step = Sinusoid(width)
        self.obs = nn.Linear(obs_dim, width)
        self.known_place = nn.Parameter(torch.empty(1 + history, width))
        self.encoder = nn.Sequential(nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width))
        self.known = nn.Linear(width, config.layers * 2 * width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, act_dim)
        time, tokens = torch.arange(horizon)[:, None], torch.arange(1 + history)
        self.register_buffer("sees_actions", time >= time.T, persistent=False)
        self.register_buffer("sees_known", time >= tokens - 1, persistent=False)
        self._initialize()

    def _initialize(self) -> None:
        """Draw the original's initial weights: normal with σ = 0.02, biases 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        for place in (self.action_place, self.known_place):
            nn.init.normal_(place, std=0.02)

    def embed_observations(self, obs: Tensor) -> Tensor:
        """Compute keys and values of the observations for all layers, (rows, history, layers·2·width)."""
        known: Tensor = self.known(self.encoder(self.obs(obs) + self.known_place[1:]))
        return known

    def embed_levels(self, t: Tensor) -> Tensor:
        """Compute keys and values of the noise levels for all layers, (k, 1, layers·2·width)."""
        known: Tensor = self.known(self.encoder(self.step(t)[:, None] + self.known_place[:1]))
        return known

    def forward(
        self, noisy: Tensor, level: Tensor, context: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Predict the noise of all actions at once; in training, dropout masks come from `generator`."""
        if self.training and self.config.dropout > 0 and generator is None:
            raise ConfigError("dropout in training needs a random generator")
        dropout = generator if self.training else None
        known = torch.cat([level.expand(len(noisy), -1, -1), context], dim=1)
        shape = (*known.shape[:2], self.config.layers, 2, self.config.heads, -1)
        by_layer = known.reshape(shape).permute(2, 3, 0, 4, 1, 5)
        x = self.action(noisy) + self.action_place
        for layer, (keys, values) in zip(self.layers, by_layer, strict=True):
            x = layer(x, (keys, values), (self.sees_actions, self.sees_known), dropout)
        out: Tensor = self.head(self.norm(x))
        return out
