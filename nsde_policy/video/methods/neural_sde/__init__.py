"""Neural SDE for video; its model is imported on first use."""

from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.registry import VideoMethod, add_video_method

add_video_method(
    VideoMethod(
        "neural_sde",
        "Neural SDE",
        NeuralSDEVideoConfig,
        "nsde_policy.video.methods.neural_sde.model:NeuralSDEVideo",
    )
)
