"""Neural SDE for video; its model is imported on first use."""

from nsde_policy.methods.registry import Method, add_method
from nsde_policy.video.config import VIDEO_METHODS
from nsde_policy.video.methods.neural_sde.config import PRESETS, NeuralSDEVideoConfig

add_method(
    Method(
        "neural_sde",
        "Neural SDE",
        NeuralSDEVideoConfig,
        PRESETS,
        "nsde_policy.video.methods.neural_sde.model:NeuralSDEVideo",
    ),
    VIDEO_METHODS,
)
