"""Layers of a frame: moving objects, each with a keypoint, cut out by a network that learns from motion.

A network assigns every pixel to one of K layers or to the background. The keypoint of a layer is the centroid
of its pixels, weighted by how much they differ from the background. A frame is redrawn from another one of
the same video by moving each layer along with its keypoint: appearance comes from that frame, geometry from
the keypoints (as in Jakab et al. 2018). The error of the redrawn frame is the training signal; no positions
are used.

Layers move without turning, so this suits objects that keep their orientation.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nsde_policy.core.networks import weights_from
from nsde_policy.encoders.keypoints.networks import make_axis
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.video.base import VideoBatch
from nsde_policy.video.keypoints.config import LayerConfig
from nsde_policy.video.spaces import RGB_CHANNELS, to_unit

REDRAW_UNIT = 20.0
"""The squared error of a frame is divided by this number, which makes its gradients about as large as 1."""

SCORE_LIMIT = 4.0
"""Limit on the scores of a pixel's layers: without it an empty layer gets no gradient, and two objects that
share a layer early in training stay together."""


class FrameLayers(NamedTuple):
    """Layers of a batch of n frames."""

    masks: Tensor
    """Share of each layer in each pixel, (n, layers, size, size)."""
    keypoints: Tensor
    """Centroids (x, y) in [-1, 1], (n, layers, 2)."""
    present: Tensor
    """1 for layers with content, 0 for empty ones, (n, layers)."""
    rings: Tensor
    """Share of each ring around its keypoint that a layer covers, (n, layers, rings)."""


class LayerAutoencoder(TrainableModel[VideoBatch]):
    """Cuts frames into layers and redraws them."""

    background: Tensor
    ring_weights: Tensor

    def __init__(self, config: LayerConfig, *, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config, self.size = config, size
        w = config.width
        with weights_from(generator):
            self.network = nn.Sequential(
                nn.Conv2d(RGB_CHANNELS, w, 3, 1, 1), nn.SiLU(), nn.Conv2d(w, w, 3, 1, 1), nn.SiLU()
            )
            self.assign = nn.Conv2d(w, config.layers + 1, 1)
        self.register_buffer("background", torch.zeros(RGB_CHANNELS, size, size))
        weights = make_rings(config.crop)
        self.register_buffer("ring_weights", weights / weights.sum(0), persistent=False)

    def measure_background(self, frames: Tensor) -> None:
        """Set the background to the median of frames (n, size, size, 3) uint8, pixel by pixel."""
        self.background.copy_(to_unit(frames).median(dim=0).values)

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(("redraw", "sharpness"), tuple(self.parameters())),)

    def loss(self, batch: VideoBatch, generator: torch.Generator) -> LossParts:
        """Return the error of frames redrawn from other ones, and how much pixels are shared by layers."""
        n, length = batch.frames.shape[:2]
        device = batch.frames.device
        start = torch.randint(length, (n, 1), generator=generator, device=device)
        other = (start + torch.randint(1, length, (n, 1), generator=generator, device=device)) % length
        rows = torch.arange(n, device=device)[:, None]
        first, last = (to_unit(batch.frames[rows, each][:, 0]) for each in (start, other))
        masks = self._find_masks(torch.cat([first, last]))
        with torch.autocast(masks.device.type, enabled=False):  # positions need more than bf16
            difference = torch.cat([first, last]) - self.background
            shown = difference.norm(dim=1, keepdim=True)
            points = _find_centroids(masks[:, :-1] * shown)
            drawn = self.draw(self.separate(first, masks[:n, :-1]), points[n:] - points[:n])
        redraw = (drawn - last).square().sum((1, 2, 3)).mean() / REDRAW_UNIT
        mixed = (masks[:n] * (1 - masks[:n])).sum(1)
        sharpness = (mixed * shown[:n, 0]).sum((1, 2)).mean() / REDRAW_UNIT
        return LossParts({"redraw": redraw, "sharpness": self.config.sharpness * sharpness})

    def _find_masks(self, frames: Tensor) -> Tensor:
        """Return the share of each layer in each pixel, the background last, (n, layers + 1, size, size)."""
        features = self.network(frames)
        with torch.autocast(features.device.type, enabled=False):  # positions need more than bf16
            scores = self.assign(features.float())
            masks: Tensor = (SCORE_LIMIT * (scores / SCORE_LIMIT).tanh()).softmax(1)
        return masks

    @torch.no_grad()
    def cut(self, frames: Tensor) -> FrameLayers:
        """Cut frames (n, 3, size, size) with values from -1 to 1 into layers."""
        masks = self._find_masks(frames)[:, :-1]
        difference = frames - self.background
        shown = masks * difference.norm(dim=1, keepdim=True)
        keypoints = _find_centroids(shown)
        cover = shown / shown.amax((2, 3), keepdim=True).clamp(min=0.1)
        pixels = cover.sum((2, 3)) * (64 / self.size) ** 2
        return FrameLayers(
            masks,
            keypoints,
            (pixels > self.config.fewest_pixels).float(),
            self._crop(cover, keypoints).flatten(2) @ self.ring_weights,
        )

    def _crop(self, cover: Tensor, keypoints: Tensor) -> Tensor:
        """Return a picture of each layer (n, k, size, size) around its keypoint, (n, k, crop, crop)."""
        side = self.config.crop
        offset = make_axis(side, keypoints) * (side / 64)
        rows, columns = (
            _interpolation_matrix(keypoints[..., axis, None] + offset, self.size) for axis in (1, 0)
        )
        return rows @ cover @ columns.mT

    def separate(self, frames: Tensor, masks: Tensor) -> Tensor:
        """Return the difference of frames from the background in each layer, (n, layers, 3, size, size)."""
        return masks[:, :, None] * (frames - self.background)[:, None]

    def draw(self, content: Tensor, moved: Tensor) -> Tensor:
        """Draw layers (n, k, 3, size, size) moved by (n, k, 2) half frames; returns (n, 3, size, size)."""
        axis = make_axis(self.size, moved)
        rows, columns = (_interpolation_matrix(axis - moved[..., i, None], self.size) for i in (1, 0))
        shifted = rows[:, :, None] @ content @ columns[:, :, None].mT
        return self.background + shifted.sum(1)


def _find_centroids(masks: Tensor) -> Tensor:
    """Return the centroid (x, y) of each mask (n, k, size, size), (n, k, 2) in [-1, 1]."""
    axis = make_axis(masks.shape[-1], masks)
    moments = torch.stack([(masks.sum(2) * axis).sum(-1), (masks.sum(3) * axis).sum(-1)], dim=-1)
    return moments / (masks.sum((2, 3))[..., None] + 1e-3)


def _interpolation_matrix(places: Tensor, size: int) -> Tensor:
    """Return the matrix that reads a row of `size` pixels at places (…, m) in [-1, 1], (…, m, size)."""
    pixel = (places + 1) * (size / 2) - 0.5
    return (1 - (pixel[..., None] - torch.arange(size, device=places.device)).abs()).clamp(min=0)


def make_rings(side: int) -> Tensor:
    """Return the share of each pixel of a square picture in each ring around its centre, (side², rings).

    Rings are one pixel apart and blend into each other. What they hold does not change when an object turns.
    """
    offset = torch.arange(side) - (side - 1) / 2
    radius = (offset.square() + offset.square()[:, None]).sqrt().flatten()
    return (1 - (radius[:, None] - torch.arange(math.ceil(float(radius.max())) + 1)).abs()).clamp(min=0)


def measure_radius(rings: Tensor, areas: Tensor) -> Tensor:
    """Return the radius of a disc of the same area, pixels of a frame of 64.

    Args:
        rings: Share of each ring that is covered, (…, rings).
        areas: Area of each ring, (rings,).
    """
    return ((rings * areas).sum(-1) / math.pi).sqrt()
