"""Settings of the landmark encoder; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from nsde_policy.bounds import MAX_SIZE, Size
from nsde_policy.config import TrainConfig, TrainedEncoderConfig, require

STRIDE = 4
"""The network halves a frame twice."""


@dataclass(frozen=True)
class LandmarkConfig(TrainedEncoderConfig):
    """Landmarks, network and augmentation of the landmark encoder."""

    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=1200,
            batch_size=64,
            learning_rate=3e-3,
            weight_decay=1e-2,
            ema=0.99,
            precision="bf16",
            log_every=20,
        )
    )
    """Optimisation settings of the encoder, which is trained before the policy."""
    size: Annotated[int, Meta(ge=32, le=512)] = 96
    """Height and width that frames are resized to, a multiple of 4."""
    landmarks: Size = 10
    """Most landmarks per camera; each is two features, which are 0 if fewer are found."""
    width: Annotated[int, Meta(ge=8, le=MAX_SIZE)] = 16
    """Channels of the first layer, a multiple of 8; deeper layers have up to four times as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.size % STRIDE == 0, f"size must be a multiple of {STRIDE}, got {self.size}")
        require(self, self.width % 8 == 0, f"width must be a multiple of 8, got {self.width}")


_USUAL = LandmarkConfig()
SMALL_ENCODER = replace(_USUAL, train=replace(_USUAL.train, steps=800, batch_size=16))
"""Encoder that two cores of a CPU train in minutes."""
