"""Settings of the ResNet encoder; no torch, so that the command line starts fast."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from nsde_policy.bounds import MAX_SIZE, Size
from nsde_policy.config import ImageEncoderConfig, require

CHANNELS_PER_GROUP = 16
"""Channels of each group of GroupNorm."""


@dataclass(frozen=True)
class ResNetConfig(ImageEncoderConfig):
    """Sizes of the ResNet encoder; the defaults are those of Diffusion Policy on images of 96 × 96."""

    size: Annotated[int, Meta(ge=33, le=512)] = 96
    """Height and width that frames are resized to."""
    crop: Annotated[int, Meta(ge=33, le=512)] = 84
    """Height and width of the part that the network sees: at a random place in training, else the centre."""
    width: Annotated[int, Meta(ge=CHANNELS_PER_GROUP, le=MAX_SIZE)] = 64
    """Channels of the first layer, a multiple of 16; the last ones have eight times as many."""
    keypoints: Size = 32
    """Points of the spatial softmax per camera."""
    features: Size = 64
    """Values per camera that are computed from these points."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.crop <= self.size, f"need crop <= size {self.size}, got {self.crop}")
        whole = self.width % CHANNELS_PER_GROUP == 0
        require(self, whole, f"width must be a multiple of {CHANNELS_PER_GROUP}, got {self.width}")
