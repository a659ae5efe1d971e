"""The methods by name: a new one is one new file in `models/` and one line here.

Nothing is imported before it is asked for: settings of the Neural SDE come without torch, so that help and
typing errors are instant.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsde_policy.config import ModelConfig, Preset
from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    from nsde_policy.methods.base import AbstractPolicyModel

DEFAULT_METHOD = "neural_sde"


@dataclass(frozen=True)
class Method:
    """Where a method is to be found."""

    title: str
    """For people."""
    config: str
    """module:class of its settings."""
    model: str
    """module:class of its model."""

    def config_class(self) -> type[ModelConfig]:
        """The class of its settings."""
        found: type[ModelConfig] = _at(self.config)
        return found

    def model_class(self) -> "type[AbstractPolicyModel[Any]]":
        """The class of its model."""
        found: type[AbstractPolicyModel[Any]] = _at(self.model)
        return found

    def presets(self) -> dict[str, Preset]:
        """Its settings by name, `PRESETS` in the model's file; those of the Neural SDE belong to the task."""
        found: dict[str, Preset] = getattr(importlib.import_module(self.model.split(":")[0]), "PRESETS", {})
        return found


def _one_file(title: str, module: str, stem: str) -> Method:
    path = f"nsde_policy.methods.{module}"
    return Method(title, f"{path}:{stem}Config", f"{path}:{stem}")


METHODS: dict[str, Method] = {
    DEFAULT_METHOD: Method(
        "Neural SDE", "nsde_policy.config:NeuralSDEConfig", "nsde_policy.methods.neural_sde.model:NeuralSDE"
    ),
    "diffusion": _one_file("Diffusion Policy", "diffusion.model", "Diffusion"),
    "lstm_gmm": _one_file("LSTM-GMM", "lstm_gmm", "LSTMGMM"),
    "ibc": _one_file("Implicit BC", "ibc", "ImplicitBC"),
    "bet": _one_file("Behaviour Transformer", "bet.model", "BehaviourTransformer"),
    "regression": _one_file("Regression", "regression", "Regression"),
    "flow": _one_file("Streaming flow", "flow", "StreamingFlow"),
    "mip": _one_file("Two-step MIP", "mip", "MIP"),
    "knn": _one_file("Nearest neighbours", "knn", "NearestNeighbours"),
}


def get_method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise ConfigError(f"no policy {name!r}; there are: {', '.join(METHODS)}")
    return METHODS[name]


def method_of(config: ModelConfig) -> str:
    """The name of the method that settings belong to."""
    path = f"{type(config).__module__}:{type(config).__qualname__}"
    for name, method in METHODS.items():
        if method.config == path:
            return name
    raise ConfigError(f"{type(config).__name__} belongs to no method; name it in nsde_policy/methods/registry.py")


def _at(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
