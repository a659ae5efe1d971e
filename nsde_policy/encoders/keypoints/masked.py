"""Distillation of the keypoint encoder: find the keypoints of clean frames where parts are hidden.

A trained encoder is the teacher of a copy of itself. The copy sees the same frames shifted, partly hidden and
in another light, and learns the teacher's features of the clean ones. It costs nothing when a policy acts.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.encoders.base_model import CameraBatch
from nsde_policy.encoders.keypoints.masking import change_light, hide_parts, shift_frames
from nsde_policy.methods.base import LossParts

if TYPE_CHECKING:
    from nsde_policy.encoders.keypoints.model import CameraAutoencoder, KeypointModel

SHIFTED, UNDONE = 0.6, 0.65
"""Shares of the frames that are shifted, and of those whose shift is undone before they are encoded."""
FIRST, SECOND = (0.65, (0.02, 0.22)), (0.15, (0.01, 0.08))
"""Share of the frames with an occluder, and the share of the frame that it hides; the same for a second."""
RELIT, GAIN = 0.6, 0.2
"""Share of the frames in another light, and the largest relative change of their brightness."""
NOISY, NOISE = 0.3, 0.06
"""Share of the frames with noise, and its largest standard deviation."""
POINT_BETA, SHIFT_BETA = 0.02, 0.3
"""Errors below which a loss is quadratic: of features in standard deviations, and of shifts in pixels."""
SHIFT_WEIGHT = 0.3
MIN_STD = 1e-4
"""Smallest standard deviation of a feature, in units of half a frame."""


def list_trained(model: "KeypointModel") -> tuple[nn.Parameter, ...]:
    """Return the parameters that find keypoints and measure shifts: all but those of the decoder."""
    drawing = (".decoder.", ".locate.")
    named = model.named_parameters()
    return tuple(parameter for name, parameter in named if not any(part in name for part in drawing))


def compute_masked_losses(
    model: "KeypointModel", batch: CameraBatch, std: Tensor, generator: torch.Generator
) -> LossParts:
    """Return the mean error over the cameras, of the features and of the measured shift.

    The targets of the batch are the teacher's features of the frames and of their mirror images,
    (n, feature_dim), whose standard deviations are `std`.
    """
    values, flip = model.choose_mirrored(batch, generator)
    features, mirrored = batch.targets
    if flip is not None:
        features = torch.where(flip[:, None], mirrored, features)
    std, cameras = std.clamp(min=MIN_STD), model.autoencoders()
    targets, scales = (features / std).chunk(len(cameras), dim=1), std.chunk(len(cameras))
    points, shifts = [], []
    for camera, frames, target, scale in zip(cameras, batch.frames, targets, scales, strict=True):
        found, measured, left = _encode(model, camera, model.flip(frames, flip), values, generator)
        wrong = F.smooth_l1_loss(found / scale, target, beta=POINT_BETA, reduction="none").mean(1)
        is_still = (left == 0).all(1)
        points.append((wrong * is_still).sum() / is_still.sum().clamp(min=1))
        shifts.append(SHIFT_WEIGHT * F.smooth_l1_loss(measured, left, beta=SHIFT_BETA))
    parts = {"points": torch.stack(points).mean(), "shift": torch.stack(shifts).mean()}
    return LossParts(parts if model.measures_shift else {"points": parts["points"]})


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
    for share, areas in (FIRST, SECOND):
        seen = hide_parts(seen, share, areas, generator)
    gain = 1 + GAIN * (2 * draw() - 1) * (draw() < RELIT)
    noise = torch.randn(seen.shape, device=device, generator=generator)
    strength = NOISE * draw() * (draw() < NOISY)
    seen = model.level(camera, change_light(seen, gain, strength[:, None, None, None] * noise))
    left = shift * (draw(1) >= UNDONE)
    keypoints, anchors = camera.find_points(shift_frames(seen, left - shift))
    measured = camera.measure_shift(anchors, values) * (config.size / 2)
    return keypoints.flatten(1), measured, left.to(measured.dtype)
