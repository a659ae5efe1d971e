"""U-ViT (Bao et al. 2023) with a convolutional stem: early blocks are joined to late ones."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nsde_policy.encoders.layers import NormedConv

from .settings import STRIDE, UViTConfig

ATTENTION_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN's, whose gradients in bf16 were NaN after some thousand steps on an H200 (torch 2.11)."""
EMBEDDING = 128
"""Size of the sinusoidal embedding of a time."""


class AttentionBlock(nn.Module):
    """Self-attention and an MLP, each added to its input; `skip` joins the tokens of an earlier block."""

    def __init__(self, width: int, heads: int, *, has_skip: bool = False) -> None:
        super().__init__()
        self._heads = heads
        self.join = nn.Linear(2 * width, width) if has_skip else None
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        """Map tokens (n, tokens, width) to the same shape."""
        if self.join is not None and skip is not None:
            x = self.join(torch.cat([x, skip], dim=-1))
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, tokens, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(ATTENTION_KERNELS):
            attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(n, tokens, width))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Transformer(nn.Module):
    """The blocks: half of them in, one in the middle, half of them out with long skips."""

    def __init__(self, config: UViTConfig) -> None:
        super().__init__()
        half, width = config.depth // 2, config.width
        self.inward = nn.ModuleList(AttentionBlock(width, config.heads) for _ in range(half))
        self.middle = AttentionBlock(width, config.heads)
        self.outward = nn.ModuleList(AttentionBlock(width, config.heads, has_skip=True) for _ in range(half))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (n, tokens, width) to the same shape."""
        skips = []
        for block in self.inward:
            x = block(x)
            skips.append(x)
        x = self.middle(x)
        for block in self.outward:
            x = block(x, skips.pop())
        out: Tensor = self.norm(x)
        return out


class ResidualConv(nn.Module):
    """Two convolutions added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(NormedConv(channels, channels, 3), nn.Conv2d(channels, channels, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, h, w) to the same shape."""
        out: Tensor = x + self.body(x)
        return out


class UViT(nn.Module):
    """Maps images, and a time in [0, 1] if `has_time`, to feature maps of the same size.

    The images themselves, and the time as one more channel, are joined to the feature maps: what a pixel was,
    and the noise in it, need not pass through the smaller grids.
    """

    def __init__(self, config: UViTConfig, *, inputs: int, size: int, has_time: bool = False) -> None:
        super().__init__()
        self.transformer = Transformer(config)
        inputs += has_time
        (first, second), width, features = config.stem, config.width, config.features
        self.channels = features + inputs
        self.stem_half = nn.Sequential(
            nn.PixelUnshuffle(2),
            NormedConv(4 * inputs, first, 3),
            NormedConv(first, first, 3),
            ResidualConv(first),
        )
        self.stem_quarter = nn.Sequential(
            NormedConv(first, second, 3, stride=2), NormedConv(second, second, 3), ResidualConv(second)
        )
        self.patches = nn.Conv2d(second, width, 3, 2, 1)
        self.to_quarter = nn.Conv2d(width, 4 * second, 1)
        self.join_quarter = _make_join(second, first)
        self.join_half = _make_join(first, features)
        self.smooth = nn.Conv2d(self.channels, features, 3, 1, 1)
        self.place = nn.Parameter(0.02 * torch.randn(1, (size // STRIDE) ** 2, width))
        self.time = None
        if has_time:
            self.time = nn.Sequential(nn.Linear(EMBEDDING, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """Map images (n, inputs, size, size) and times (n,) to feature maps."""
        if x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)  # faster convolutions
        if time is not None:
            x = torch.cat([x, time[:, None, None, None].to(x.dtype).expand(-1, 1, *x.shape[2:])], dim=1)
        half = self.stem_half(x)
        quarter = self.stem_quarter(half)
        grid = self.patches(quarter)
        tokens = grid.flatten(2).transpose(1, 2) + self.place
        patches = tokens.shape[1]
        if self.time is not None and time is not None:
            moment = self.time(embed_time(time).to(tokens.dtype))[:, None]
            tokens = torch.cat([moment.to(tokens.dtype), tokens], dim=1)
        tokens = self.transformer(tokens)[:, -patches:]
        grid = tokens.transpose(1, 2).reshape(grid.shape)
        up = F.pixel_shuffle(self.to_quarter(grid), 2)
        up = F.pixel_shuffle(self.join_quarter(torch.cat([up, quarter], dim=1)), 2)
        up = F.pixel_shuffle(self.join_half(torch.cat([up, half], dim=1)), 2)
        x = x.to(up.dtype)
        return torch.cat([F.silu(self.smooth(torch.cat([up, x], dim=1))), x], dim=1)


def _make_join(channels: int, outputs: int) -> nn.Sequential:
    """Join a grid with that of the same size on the way in, to `outputs` channels at twice the size."""
    return nn.Sequential(
        NormedConv(2 * channels, channels, 3), ResidualConv(channels), nn.Conv2d(channels, 4 * outputs, 1)
    )


def embed_time(time: Tensor) -> Tensor:
    """Embed times in [0, 1], (n,), as sines and cosines of 64 frequencies, (n, 128)."""
    k = torch.arange(EMBEDDING // 2, device=time.device, dtype=torch.float32)
    phase = 1000 * time.float()[:, None] * torch.exp(-k * (9.21 / (EMBEDDING // 2)))
    return torch.cat([phase.sin(), phase.cos()], dim=-1)
