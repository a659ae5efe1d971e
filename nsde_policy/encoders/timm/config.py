"""Settings of the timm encoder; no torch, so that the command line starts fast."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from nsde_policy.bounds import MAX_SIZE

from ..keypoints.config import SMALL_ENCODER as SMALL_KEYPOINTS
from ..keypoints.config import KeypointConfig

PATCH = 112
"""Divisible by the patches of vision transformers, 14 and 16 pixels, and by the stride of `keypoints`."""


@dataclass(frozen=True)
class TimmConfig(KeypointConfig):
    """Settings of `keypoints` with a pretrained network in place of its own."""

    model: str = "resnet18"
    """Network, by its name in timm, such as vit_small_patch14_dinov2."""
    weights: str = ""
    """File of its weights, safetensors or a state dict of torch. Training needs it; the run holds a copy."""
    frozen: bool = True
    """Keep the weights of the network as they are, and train only the maps of keypoints."""
    size: Annotated[int, Meta(ge=32, le=512)] = 2 * PATCH
    """Height and width that frames are resized to, a multiple of 8."""
    shift: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 8
    """Largest random shift of a training frame, pixels."""


SMALL_ENCODER = TimmConfig(**{**vars(SMALL_KEYPOINTS), "size": PATCH})
"""Encoder that a CPU can train on few episodes; it trusts the camera's place."""
