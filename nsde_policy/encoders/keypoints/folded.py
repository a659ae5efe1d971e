"""The keypoint encoder for one row, in the form that is fastest as a graph."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..encoder_model import VisibilityHead
from .autoencoder import CameraAutoencoder
from .config import KeypointConfig


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

    def forward(self, values: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Encode a row as `EncoderModel.fold_for_export` says."""
        measures_shift = self.config.anchors > 0
        frames = inputs[1:] if measures_shift else inputs
        scaled = 2 * (values[None] - self.low) / (self.high - self.low) - 1
        features, measured, summaries = [], [], []
        for i, (module, frame) in enumerate(zip(self.cameras, frames, strict=True)):
            camera = cast(CameraAutoencoder, module)
            (level,) = camera.level(frame[None])
            steady = _undo_shift(level, inputs[0][i]) if measures_shift else level.permute(2, 0, 1)
            points, summary = camera.encoder(steady[None].to(torch.float32) / 127.5 - 1)
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
