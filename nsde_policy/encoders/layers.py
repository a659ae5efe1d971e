"""Layers of convolutional encoders, and positions in heat maps."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .image_norm import ImageNorm

NORM_GROUPS = 8
"""Groups of all group normalisations."""


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions with group normalisation, added to their input; the first may halve the size."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.first_norm = ImageNorm(NORM_GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.second_norm = ImageNorm(NORM_GROUPS, outputs)
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        h = F.silu(self.first_norm(self.first(x)))
        out: Tensor = F.silu(self.second_norm(self.second(h)) + self.skip(x))
        return out


class NormedConv(nn.Module):
    """A convolution with group normalisation and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
        self.norm = ImageNorm(NORM_GROUPS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        out: Tensor = F.silu(self.norm(self.conv(x)))
        return out


def locate_peaks(maps: Tensor) -> Tensor:
    """Return the mean position (x, y) under the softmax of each map, (n, k, h, w) to (n, k, 2)."""
    weight = maps.flatten(2).softmax(-1).view_as(maps)
    y = (weight.sum(3) * make_axis(maps.shape[2], maps)).sum(-1)
    x = (weight.sum(2) * make_axis(maps.shape[3], maps)).sum(-1)
    return torch.stack([x, y], dim=-1)


def average_maps(*maps: Tensor) -> Tensor:
    """Return the mean of each map, (n, k, h, w) to (n, all k)."""
    return torch.cat([each.mean((2, 3)) for each in maps], dim=1)


def make_axis(length: int, like: Tensor) -> Tensor:
    """Return the centres of `length` cells of the interval from -1 to 1."""
    return (torch.arange(length, device=like.device, dtype=like.dtype) + 0.5) * (2 / length) - 1
