"""Networks of the keypoint encoder: frames to keypoints, and keypoints back to frames."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..image_norm import ImageNorm

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


class KeypointNetwork(nn.Module):
    """Frames to keypoints: each is the mean position under one heat map (soft-argmax)."""

    def __init__(self, *, keypoints: int, width: int) -> None:
        super().__init__()
        w = width
        self.stem = NormedConv(3, w, 5, stride=2)
        self.middle = nn.Sequential(ResidualBlock(w, 2 * w, stride=2), ResidualBlock(2 * w, 2 * w))
        self.deep = nn.Sequential(ResidualBlock(2 * w, 4 * w, stride=2), ResidualBlock(4 * w, 4 * w))
        self.join = NormedConv(6 * w, 2 * w, 3)
        self.maps = nn.Conv2d(2 * w, keypoints, 1)

    def forward(self, rgb: Tensor) -> tuple[Tensor, Tensor]:
        """Map frames (n, 3, size, size) in [-1, 1] to keypoints (n, keypoints, 2) in [-1, 1], as (x, y).

        Also return the means of the last maps, (n, 6 · width).
        """
        middle = self.middle(self.stem(rgb))
        deep = self.deep(middle)
        enlarged = F.interpolate(deep, scale_factor=2.0, mode="nearest")
        features = self.join(torch.cat([middle, enlarged], dim=1))
        with torch.autocast(features.device.type, enabled=False):  # positions need more than bf16
            return locate_peaks(self.maps(features.float())), average_maps(features, deep)


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


def draw_bumps(points: Tensor, side: int, radius: float) -> Tensor:
    """Draw each point (n, k, 2) as a Gaussian bump on a grid, (n, k, side, side)."""
    axis = make_axis(side, points)
    x = (-0.5 * ((points[..., :1] - axis) / radius).square()).exp()
    y = (-0.5 * ((points[..., 1:] - axis) / radius).square()).exp()
    return y[..., :, None] * x[..., None, :]


class FrameDecoder(nn.Module):
    """Points back to a frame: it draws over a known background. Needed in training only."""

    def __init__(self, *, points: int, width: int, size: int, bump: float) -> None:
        super().__init__()
        w = width
        self._side, self._bump = size // 4, bump
        self.stem = nn.Sequential(NormedConv(points, 2 * w, 5), ResidualBlock(2 * w, 2 * w))
        self.deep = nn.Sequential(ResidualBlock(2 * w, 2 * w, stride=2), ResidualBlock(2 * w, 2 * w))
        self.join = NormedConv(4 * w, 2 * w, 3)
        self.up = NormedConv(2 * w, w, 3)
        self.out = nn.Conv2d(w, 16, 3, 1, 1)

    def forward(self, points: Tensor, background: Tensor) -> Tensor:
        """Draw points (n, k, 2) over a background (n, 3, size, size); returns frames of that shape."""
        shallow = self.stem(draw_bumps(points, self._side, self._bump))
        deep = F.interpolate(self.deep(shallow), scale_factor=2.0, mode="nearest")
        h = self.join(torch.cat([shallow, deep], dim=1))
        h = self.up(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        drawing: Tensor = F.pixel_shuffle(self.out(h).float(), 2)
        colour, opacity = drawing[:, :3], torch.sigmoid(drawing[:, 3:] - 2)
        return (1 - opacity) * background + opacity * colour
