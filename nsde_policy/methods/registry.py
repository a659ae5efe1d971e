"""Methods by name: a new one is one new file in `baselines/`, or a package with an entry point.

    @register_method("my_method", title="My method", config=MyConfig, presets=PRESETS)
    class MyMethod(PolicyModel[Windows]): ...

Entry points of other packages belong to the group `nsde_policy.methods`.
"""

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nsde_policy.config import ModelConfig, Preset
from nsde_policy.errors import ConfigError
from nsde_policy.registry import Registry

if TYPE_CHECKING:
    from nsde_policy.data.statistics import DemoStatistics

    from .base import TrainableModel

Model = TypeVar("Model", bound="type[TrainableModel[Any]]")


@dataclass(frozen=True)
class Method:
    """One method of imitation learning."""

    name: str
    title: str
    """Name in tables and plots."""
    config: type[ModelConfig]
    presets: Mapping[str, Preset]
    """Settings by name; `default` and `fast` at least."""
    model: "type[TrainableModel[Any]] | str"
    """Class of its model, or `module:class` to import it on first use."""
    adapt: "Callable[[DemoStatistics], Preset] | None" = None
    """Chooses the preset `auto` from the demonstrations; by default it is `default` with another chunk."""

    def auto_preset(self, statistics: "DemoStatistics") -> Preset:
        """Return the preset `auto`, for tasks without tuned settings, by the statistics of demonstrations."""
        if self.adapt is not None:
            return self.adapt(statistics)
        from nsde_policy.data.statistics import choose_chunk

        preset, chunk = self.presets["default"], choose_chunk(statistics)
        return replace(preset, chunk=min(chunk, preset.model.longest_chunk or chunk))

    def model_class(self) -> Any:
        """Return the class of its model, importing its module if necessary."""
        return pkgutil.resolve_name(self.model) if isinstance(self.model, str) else self.model


HELPERS = ("base", "baselines", "registry")
"""Modules of both folders that are no methods."""
METHODS: Registry[Method] = Registry(
    "method", "nsde_policy.methods", "nsde_policy.methods.baselines", helpers=HELPERS
)


def register_method(
    name: str,
    *,
    title: str,
    config: type[ModelConfig],
    presets: Mapping[str, Preset],
    adapt: "Callable[[DemoStatistics], Preset] | None" = None,
) -> Callable[[Model], Model]:
    """Register a method; decorates the class of its model.

    Args:
        name: Name on the command line and in run directories.
        title: Name in tables and plots.
        config: Class of its settings, a `ModelConfig`.
        presets: Settings by name; `default` and `fast` at least.
        adapt: Chooses the preset `auto`; see `Method.adapt`.
    """

    def register(model: Model) -> Model:
        add_method(Method(name, title, config, presets, model, adapt))
        return model

    return register


def add_method(method: Method) -> None:
    """Register a method whose model is imported on first use."""
    method.config.method = method.name
    model = method.model
    module = model.partition(":")[0] if isinstance(model, str) else model.__module__
    METHODS.add(method.name, method, module=module)


def get_method(name: str) -> Method:
    """Return a method by name; raise `PluginError` if it is not installed."""
    return METHODS.get(name)


def find_method_name(config: ModelConfig) -> str:
    """Return the name of the method that settings belong to."""
    name = type(config).method
    if not name:
        raise ConfigError(f"{type(config).__name__} belongs to no registered method: use @register_method")
    return name
