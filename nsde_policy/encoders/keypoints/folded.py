"""The keypoint encoder for one row, in the form that is fastest as a graph."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..encoder_model import VisibilityHead
from .autoencoder import CameraAutoencoder
from .config import KeypointConfig
from .networks import KeypointNetwork, average_maps, locate_peaks

GREY = 127.5
"""Brightness that is 0 in [-1, 1], and what the first layer pads frames with."""


class FoldedKeypoints(nn.Module):
    """Keypoints of all cameras with a given shift undone, and the shift that is measured then."""

    low: Tensor
    high: Tensor

    def __init__(
        self,
        config: KeypointConfig,
        cameras: Sequence[CameraAutoencoder],
        low: Tensor,
        high: Tensor,
        visibility: VisibilityHead | None,
    ) -> None:
        super().__init__()
        self.config, self.visibility = config, visibility
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.cameras = nn.ModuleList(cameras)
        self.networks = nn.ModuleList(FoldedNetwork(camera.encoder) for camera in cameras)

    def forward(self, values: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Encode a row as `EncoderModel.fold_for_export` says."""
        measures_shift = self.config.anchors > 0
        frames = inputs[1:] if measures_shift else inputs
        scaled = 2 * (values[None] - self.low) / (self.high - self.low) - 1
        features, measured, summaries = [], [], []
        for i, (module, network, frame) in enumerate(zip(self.cameras, self.networks, frames, strict=True)):
            camera = cast(CameraAutoencoder, module)
            (level,) = camera.level(frame[None])
            steady = _undo_shift(level, inputs[0][i]) if measures_shift else level.permute(2, 0, 1)
            points, summary = network(steady)
            keypoints, anchors = camera.split_points(points)
            summaries.append(summary)
            features.append(keypoints.flatten())
            measured.append(camera.measure_shift(anchors, scaled)[0])
        reach = self.config.shift
        shifts = (torch.stack(measured).clamp(-reach, reach),) if measures_shift else ()
        visible = () if self.visibility is None else (self.visibility(torch.cat(summaries, dim=1)),)
        return torch.cat(features), *shifts, *visible


def _undo_shift(frame: Tensor, shift: Tensor) -> Tensor:
    """Move a frame (size, size, 3) back by a shift (x, y) in pixels, (2,); pixels at the edge are repeated.

    Returns it as (3, size, size). Rows and columns are both moved along the first axis, where a whole line is
    copied at once.
    """
    size = frame.shape[0]
    places = (torch.arange(size) + shift[:, None].long()).clamp(0, size - 1)
    return frame.index_select(0, places[1]).permute(1, 2, 0).index_select(0, places[0]).permute(1, 2, 0)


class FoldedNetwork(nn.Module):
    """A `KeypointNetwork` for one frame with fewer multiplications.

    The scaling of colours is part of the first convolution. A convolution of a map that was enlarged by
    repeating pixels multiplies equal pixels several times; a transposed convolution of the small map adds
    their weights first.
    """

    def __init__(self, network: KeypointNetwork) -> None:
        super().__init__()
        self.network = network
        stem, join = network.stem.conv, network.join.conv
        self.stem = nn.Parameter(stem.weight.detach() / GREY)
        wide = network.maps.in_channels  # channels of the middle map, which come first
        self.middle = nn.Parameter(join.weight.detach()[:, :wide].clone())
        deep = join.weight.detach()[:, wide:]
        spread = deep.new_tensor([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0]])
        self.deep = nn.Parameter(torch.einsum("ay,bx,ocyx->coab", spread, spread, deep).contiguous())

    def forward(self, frame: Tensor) -> tuple[Tensor, Tensor]:
        """Map a frame (3, size, size) uint8 to points (1, points, 2) in [-1, 1] and the means of maps."""
        network = self.network
        rgb = frame[None].to(torch.float32) - GREY
        stem, join = network.stem, network.join
        x = F.silu(stem.norm(F.conv2d(rgb, self.stem, stem.conv.bias, stem.conv.stride, stem.conv.padding)))
        middle = network.middle(x)
        joined, deep = F.conv2d(middle, self.middle, join.conv.bias, padding=1), network.deep(middle)
        joined = joined + F.conv_transpose2d(deep, self.deep, stride=2, padding=1)
        features = F.silu(join.norm(joined))
        return locate_peaks(network.maps(features)), average_maps(features, deep)
