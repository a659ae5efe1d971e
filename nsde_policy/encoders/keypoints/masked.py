"""Keypoints and shifts of disturbed frames, as the keypoint encoder learns them from a teacher."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.encoders.base_model import DisturbedFeatures
from nsde_policy.encoders.masking import disturb_frames, shift_frames

if TYPE_CHECKING:
    from nsde_policy.encoders.keypoints.model import CameraAutoencoder, KeypointModel

SHIFTED, UNDONE = 0.6, 0.65
"""Shares of the frames that are shifted, and of those whose shift is undone before they are encoded."""
SHIFT_BETA, SHIFT_WEIGHT = 0.3, 0.3
"""Error of a shift below which its loss is quadratic, in pixels, and the weight of that loss."""


def list_trained(model: "KeypointModel") -> tuple[nn.Parameter, ...]:
    """Return the parameters that find keypoints and measure shifts: all but those of the decoder."""
    drawing = (".decoder.", ".locate.")
    named = model.named_parameters()
    return tuple(parameter for name, parameter in named if not any(part in name for part in drawing))


def encode_shifted(
    model: "KeypointModel", values: Tensor, frames: Sequence[Tensor], generator: torch.Generator
) -> DisturbedFeatures:
    """Encode disturbed frames of each camera, most after their shift is undone.

    Keypoints are taught in frames without a shift, and the measured shift in all; `values` are in [-1, 1].
    """
    features, taught, shifts = [], [], []
    for camera, given in zip(model.autoencoders(), frames, strict=True):
        found, measured, left = _encode(model, camera, given, values, generator)
        features.append(found)
        taught.append((left == 0).all(1))
        shifts.append(SHIFT_WEIGHT * F.smooth_l1_loss(measured, left, beta=SHIFT_BETA))
    losses = {"shift": torch.stack(shifts).mean()} if model.measures_shift else {}
    return DisturbedFeatures(torch.cat(features, dim=1), torch.stack(taught, dim=1), losses)


def _encode(
    model: "KeypointModel",
    camera: "CameraAutoencoder",
    frames: Tensor,
    values: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of disturbed frames, the shift that is measured and the one that is there, (n, 2)."""
    n, device, config = len(frames), frames.device, model.config

    def draw(*shape: int) -> Tensor:
        return torch.rand(n, *shape, device=device, generator=generator)

    reach = config.shift if config.anchors else 0
    shift = torch.randint(-reach, reach + 1, (n, 2), device=device, generator=generator)
    shift = shift * (draw(1) < SHIFTED)
    colour = (256 * draw(1, 1, 3)).to(torch.uint8)
    seen = shift_frames(frames, shift, colour, draw() < 0.5)
    seen = model.level(camera, disturb_frames(seen, generator))
    left = shift * (draw(1) >= UNDONE)
    keypoints, anchors, _ = camera.find_points(shift_frames(seen, left - shift))
    measured = camera.measure_shift(anchors, values) * (config.size / 2)
    return keypoints.flatten(1), measured, left.to(measured.dtype)
