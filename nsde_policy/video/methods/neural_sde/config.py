"""Settings and presets of the Neural SDE for video; no torch, so that the command line starts fast."""

from dataclasses import dataclass, field
from typing import Literal

from nsde_policy.bounds import NonNegative, Positive
from nsde_policy.config import require
from nsde_policy.video.config import (
    FAST_NETWORK,
    FAST_TRAINING,
    FAST_UNROLL,
    FULL_TRAINING,
    UnrollConfig,
    UViTConfig,
    VideoModelConfig,
    VideoPreset,
    VideoSampling,
)


@dataclass(frozen=True)
class NeuralSDEVideoSampling(VideoSampling):
    """How frames are sampled from a Neural SDE."""

    alpha: NonNegative = 0.5
    """Strength α of the denoiser: fraction of the noise undone per frame."""
    diffusion: NonNegative = 0.0
    """Factor on g; 0 follows the drift only."""


@dataclass(frozen=True)
class NeuralSDEVideoConfig(VideoModelConfig):
    """Settings of the Neural SDE for video."""

    flow_loss: Literal["square", "log"] = "square"
    """Square loss, or the paper's log(r² + δ)."""
    delta: Positive = 0.04
    """δ of the log loss, in squared standard deviations of the increments; on simulated
    collisions 0.04 is the paper's 0.001 in pixels from -1 to 1."""
    interpolation: Literal["none", "uniform"] = "none"
    """Train on recorded states only, or on states between two frames too, which several substeps need."""
    denoiser: bool = True
    """Whether to train the denoiser d."""
    diffusion: bool = True
    """Whether to train the diffusion g."""
    sampling: NeuralSDEVideoSampling = field(default_factory=NeuralSDEVideoSampling)
    """How frames are sampled, unless the caller gives other settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.noise > 0 or not self.denoiser, "the denoiser needs noise > 0")


PRESETS = {
    "default": VideoPreset(NeuralSDEVideoConfig(), FULL_TRAINING),
    "fast": VideoPreset(
        NeuralSDEVideoConfig(
            network=FAST_NETWORK, diffusion=False, sampling=NeuralSDEVideoSampling(alpha=1.0)
        ),
        FAST_TRAINING,
        unroll=FAST_UNROLL,
        size=32,
    ),
    "paper": VideoPreset(
        NeuralSDEVideoConfig(
            noise=0.1,
            random_noise=False,
            network=UViTConfig(kind="plain"),
            flow_loss="log",
            interpolation="uniform",
            sampling=NeuralSDEVideoSampling(substeps=2, alpha=1.0, diffusion=1.0),
        ),
        FULL_TRAINING,
        unroll=UnrollConfig(frames=0),
    ),
}
"""`default` needs a GPU; `fast` is for frames of 32 × 32 on a CPU, without g, which is not used in sampling;
`paper` follows the paper.

Deviation: the paper states neither σ nor the size of its network; here σ = 0.1, and the network is the plain
U-ViT of the default size.
"""
