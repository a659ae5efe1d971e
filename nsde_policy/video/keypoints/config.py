"""Settings of video prediction in keypoints; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field

from nsde_policy.bounds import Count, NonNegative, Positive
from nsde_policy.config import BaseConfig, TrainConfig


@dataclass(frozen=True)
class LayerConfig(BaseConfig):
    """Settings of the layers that a frame is cut into."""

    layers: Count = 16
    """Layers beside the background; each holds one moving object, found by its colours."""
    width: Count = 32
    """Channels of the convolutions."""
    sharpness: NonNegative = 0.2
    """Weight of Σ m (1 - m) over the shares m of a pixel's layers, which makes layers exclude each other."""
    crop: Count = 20
    """Side of the picture around a keypoint that a layer's shape is read from, pixels of a frame of 64."""
    fewest_pixels: Positive = 12.0
    """A layer with less content, in pixels of a frame of 64, is empty."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=3000, batch_size=128, learning_rate=3e-3, weight_decay=1e-4, betas=(0.9, 0.98), ema=0.995,
            precision="bf16",
        )
    )  # fmt: skip
    """Optimisation settings."""


@dataclass(frozen=True)
class MotionConfig(BaseConfig):
    """Settings of the Neural SDE of keypoints."""

    context: Count = 3
    """Frames of a training window from which position and velocity are estimated, at least 3; predictions can
    use more."""
    substeps: Count = 5
    """Solver steps per frame, in training as in sampling."""
    frames: Count = 2
    """Frames that are predicted without correction in training."""
    neighbours: Count = 2
    """Other keypoints that act on a keypoint: the nearest ones."""
    code: Count = 4
    """Size of the code of a layer's shape."""
    width: Count = 48
    """Units per hidden layer."""
    depth: Count = 2
    """Hidden layers of each network."""
    noise: NonNegative = 0.02
    """Standard deviation of the noise on recorded keypoints in training, in units of their usual change."""
    delta: Positive = 1e-2
    """δ of the log loss, in squared units of the usual change over a frame."""
    encounters: NonNegative = 2.0
    """Windows to add in which two keypoints change their velocity at once, in units of the number of all
    windows."""
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            steps=4000, batch_size=1024, learning_rate=5e-3, weight_decay=1e-4, betas=(0.9, 0.98), ema=0.99
        )
    )
    """Optimisation settings."""
