"""The Neural SDE: configuration, model and the folded plan of an export."""

from ..registry import Method, add_method
from .auto_preset import adapt_to_demos
from .config import PRESETS, NeuralSDEConfig

add_method(
    Method(
        "neural_sde",
        "Neural SDE",
        NeuralSDEConfig,
        PRESETS,
        "nsde_policy.methods.neural_sde.model:NeuralSDE",
        adapt_to_demos,
    )
)
