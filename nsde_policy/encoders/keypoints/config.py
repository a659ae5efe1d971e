"""Settings of the keypoint encoder; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from nsde_policy.bounds import MAX_SIZE, NonNegative, Positive, Size
from nsde_policy.config import TrainConfig, TrainedEncoderConfig, require

STRIDE = 8
"""The network halves a frame three times."""
FORESEEN = (8, 16, 32, 64)
"""Periods after a frame whose observations foresight predicts."""


@dataclass(frozen=True)
class KeypointConfig(TrainedEncoderConfig):
    """Keypoints, networks and augmentation of the keypoint encoder."""

    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=2430, batch_size=256, weight_decay=1e-4, precision="bf16", log_every=10
        )
    )
    """Optimisation settings of the encoder, which is trained before the policy."""
    size: Annotated[int, Meta(ge=32, le=512)] = 96
    """Height and width that frames are resized to, a multiple of 8."""
    keypoints: Size = 16
    """Keypoints per camera; each is two features."""
    width: Annotated[int, Meta(ge=8, le=MAX_SIZE)] = 16
    """Channels of the first layer, a multiple of 8; deeper layers have up to four times as many."""
    known_points: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 4
    """Positions per camera that the decoder computes from the low-dimensional observation."""
    bump: Positive = 0.12
    """Radius of the bump that a keypoint is drawn as; the frame reaches from -1 to 1."""
    blur: NonNegative = 0.02
    """Standard deviation of the noise on keypoints before they are drawn."""
    shift: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 4
    """Largest random shift of a training frame, pixels."""
    anchors: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 4
    """Further keypoints on what never moves, or on the robot, whose place follows from the low-dimensional
    observation. They measure how far the camera is shifted, and that shift is undone in the picture before
    keypoints are found; 0 trusts the camera."""
    level_brightness: bool = False
    """Scale each frame so that its median brightness is that of the background: changes of the light then do
    not move keypoints. Not for cameras whose picture the robot fills for the most part."""

    foresight: bool = False
    """Train keypoints to predict later observations instead of redrawing the frame; faster, and they find
    only what the robot reacts to. Without anchors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, not (self.foresight and self.anchors), "foresight needs anchors 0")
        require(self, self.size % STRIDE == 0, f"size must be a multiple of {STRIDE}, got {self.size}")
        require(self, self.width % 8 == 0, f"width must be a multiple of 8, got {self.width}")
        require(self, self.shift < self.size // 4, f"need shift < size / 4, got {self.shift}")


_USUAL = KeypointConfig()
SMALL_ENCODER = replace(
    _USUAL,
    size=64,
    keypoints=8,
    width=8,
    known_points=0,
    anchors=0,
    foresight=True,
    train=replace(_USUAL.train, steps=1000, batch_size=32, learning_rate=3e-3),
)
"""Encoder that a CPU can train on few episodes; it trusts the camera's place."""
