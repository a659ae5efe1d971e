"""The Neural SDE: configuration, model, learned equation and the folded plan of an export."""

from nsde_policy.methods.neural_sde.auto_preset import adapt_to_demos
from nsde_policy.methods.neural_sde.config import PRESETS, NeuralSDEConfig
from nsde_policy.methods.registry import Method, add_method

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
