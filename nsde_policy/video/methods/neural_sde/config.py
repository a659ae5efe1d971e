"""Settings of the Neural SDE for video; no torch, so that the command line starts fast."""

from dataclasses import dataclass
from typing import Literal

from nsde_policy.bounds import NonNegative, Positive
from nsde_policy.config import require
from nsde_policy.video.config import VideoModelConfig


@dataclass(frozen=True)
class NeuralSDEVideoConfig(VideoModelConfig):
    """Settings of the Neural SDE for video."""

    flow_loss: Literal["square", "log"] = "square"
    """Square loss, or the paper's log((f - Δx)² + δ)."""
    delta: Positive = 1e-3
    """δ of the log loss, for pixels from -1 to 1."""
    interpolation: Literal["none", "uniform"] = "none"
    """Train on recorded states only, or on states between two frames too, which several calls per frame
    need."""
    denoiser: bool = True
    """Learn the denoiser d."""
    diffusion: bool = True
    """Learn the diffusion g."""
    alpha: NonNegative = 0.5
    """Strength α of the denoiser in sampling."""
    diffusion_scale: NonNegative = 0.0
    """Factor on g in sampling; 0 follows the drift only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.context_noise > 0 or not self.denoiser, "the denoiser needs context_noise > 0")
