"""Networks of the keypoint encoder: frames of one camera to keypoints, and keypoints back to frames."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.config import NetworkConfig
from nsde_policy.core.networks import MLP, weights_from

from ..encoder_model import to_unit_rgb
from ..layers import NormedConv, ResidualBlock, average_maps, locate_peaks, make_axis
from .config import FORESEEN, KeypointConfig

SHARPNESS = 8.0
"""Factor on the first heat maps of short trainings: flat ones keep all keypoints in the middle for long."""
POINT_NETWORK = NetworkConfig(width=64, depth=2, dropout=0.0)
"""Network from measured values to positions."""


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


class CameraAutoencoder(nn.Module):
    """Encoder and decoder of one camera.

    `build_network` builds the network from frames to keypoints; its outputs and its layer `maps` are those of
    `KeypointNetwork`.
    """

    background: Tensor

    def __init__(
        self,
        config: KeypointConfig,
        build_network: Callable[[], nn.Module],
        plain_dim: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config = config
        with weights_from(generator):
            self.encoder = build_network()
            points, w = config.keypoints + config.known_points, config.width
            self.decoder = FrameDecoder(points=points, width=w, size=config.size, bump=config.bump)
        if config.foresight:  # nothing is redrawn
            del self.decoder
            self.encoder.get_parameter("maps.weight").data *= SHARPNESS
            inputs, outputs = 2 * config.keypoints + plain_dim, len(FORESEEN) * plain_dim
            self.predict = MLP(inputs, outputs, POINT_NETWORK, generator=generator)
        self.locate = _build_locator(plain_dim, config.known_points, generator)
        self.locate_anchors = _build_locator(plain_dim, config.anchors, generator)
        self.anchor_weight = nn.Parameter(torch.zeros(config.anchors)) if config.anchors else None
        self.register_buffer("background", torch.zeros(config.size, config.size, 3, dtype=torch.uint8))

    def level(self, frames: Tensor) -> Tensor:
        """Return the frames with the brightness of the background, if the settings say so."""
        return scale_brightness(frames, self.background) if self.config.level_brightness else frames

    def find_points(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return keypoints and anchors of frames (n, size, size, 3) uint8, (n, keypoints or anchors, 2).

        Also return the means of the network's maps, (n, summary_dim).
        """
        points, summary = self.encoder(to_unit_rgb(frames))
        return points[:, : self.config.keypoints], points[:, self.config.keypoints :], summary

    def measure_shift(self, anchors: Tensor, values: Tensor) -> Tensor:
        """Measure how far the camera is shifted, (n, 2) in pixels.

        It is a weighted mean over the anchors, (n, anchors, 2): where they are in the frames, minus where
        they are usually seen for these values, (n, plain_dim) in [-1, 1]; 0 without anchors.
        """
        if self.anchor_weight is None:
            return values.new_zeros(len(values), 2)
        moved = anchors - _locate(self.locate_anchors, values)
        return (self.anchor_weight.softmax(0)[:, None] * moved).sum(1) * (self.config.size / 2)

    def known_points(self, values: Tensor) -> Tensor:
        """Return positions in the frame that follow from measured values, (n, known_points, 2)."""
        return _locate(self.locate, values)


def _build_locator(plain_dim: int, points: int, generator: torch.Generator) -> MLP | None:
    """Build the network from measured values to positions in a frame; None for no positions."""
    return MLP(plain_dim, 2 * points, POINT_NETWORK, generator=generator) if points else None


def _locate(network: MLP | None, values: Tensor) -> Tensor:
    """Return positions in the frame for measured values, (n, points, 2)."""
    if network is None:
        return values.new_zeros(len(values), 0, 2)
    points: Tensor = network(values)
    return points.reshape(len(values), -1, 2)


def scale_brightness(frames: Tensor, background: Tensor) -> Tensor:
    """Scale each frame (n, h, w, 3) to the median brightness of the background, (h, w, 3), all uint8.

    The median does not depend on where things are, so it is the same for shifted and mirrored frames. A gain
    is at most 4, and at least 1/4.
    """
    gain = _measure_brightness(background[None]).clamp(min=1) / _measure_brightness(frames).clamp(min=1)
    scaled = frames.to(torch.float32) * gain.clamp(0.25, 4.0)[:, None, None, None]
    return scaled.round().clamp(0, 255).to(torch.uint8)


def _measure_brightness(frames: Tensor) -> Tensor:
    """Return the median brightness of each frame (n, h, w, 3), over every fourth row and column."""
    values = frames[:, ::4, ::4].to(torch.float32).mean(-1).flatten(1)
    return values.topk(values.shape[1] // 2, dim=1).values[:, -1]
