"""Registries of plug-ins: methods, tasks, readers and encoders, each found by name.

A plug-in is found in one of three places:

1. a module of the registry's own package (`nsde_policy/methods/knn.py` is the method `knn`);
2. an entry point of an installed package (group `nsde_policy.methods`, name `my_method`, value a module);
3. a call of the registry's decorator in the running program.

Nothing is imported before its name is asked for, so that help texts stay fast.
"""

import difflib
import importlib
import pkgutil
from importlib import metadata
from typing import Generic, TypeVar

from nsde_policy.errors import ConfigError, PluginError

Plugin = TypeVar("Plugin")

_INFRASTRUCTURE = frozenset({"base", "base_model", "registry", "gym", "adapter", "detection"})
"""Modules of a plug-in package that are not plug-ins."""


class Registry(Generic[Plugin]):
    """Plug-ins of one kind, imported on demand.

    Args:
        kind: What a plug-in is called in messages, such as "method".
        package: Package whose modules are the built-in plug-ins.
        group: Group of the entry points; by default `nsde_policy.` and the last part of the package's name.
    """

    def __init__(self, kind: str, package: str, *, group: str | None = None) -> None:
        self.kind, self._package = kind, package
        self._group = group or "nsde_policy." + package.rsplit(".", 1)[-1]
        self._found: dict[str, Plugin] = {}
        self._built_in: list[str] | None = None

    def add(self, name: str, plugin: Plugin) -> None:
        """Register a plug-in.

        Raises:
            ConfigError: If another plug-in has this name already.
        """
        known = self._found.get(name)
        if known is not None and getattr(known, "__module__", None) != getattr(plugin, "__module__", None):
            raise ConfigError(f"the {self.kind} {name!r} is registered already, by {known!r}: rename one")
        self._found[name] = plugin

    def names(self) -> list[str]:
        """List the names of all plug-ins, built-in ones first, without importing any."""
        if self._built_in is None:
            path = importlib.import_module(self._package).__path__
            modules = [module.name for module in pkgutil.iter_modules(path)]
            self._built_in = [name for name in modules if name not in _INFRASTRUCTURE and name[0] != "_"]
        names = [*self._built_in, *(point.name for point in self._entry_points()), *self._found]
        return list(dict.fromkeys(names))

    def get(self, name: str, *, package: str | None = None) -> Plugin:
        """Return a plug-in by name, importing its module on first use.

        Args:
            name: Name of the plug-in.
            package: Distribution that provided it when a run was made, named in the error.

        Raises:
            PluginError: If there is no such plug-in, or its module cannot be imported.
        """
        if name not in self._found:
            self._load(name, package)
        return self._found[name]

    def package_of(self, name: str) -> str | None:
        """Return the distribution that provides a plug-in, None if it is built in."""
        for point in self._entry_points():
            if point.name == name and point.dist is not None:
                return f"{point.dist.name}=={point.dist.version}"
        return None

    def _load(self, name: str, package: str | None) -> None:
        names = self.names()
        if name not in names:
            raise PluginError(self._unknown(name, names, package))
        points = {point.name: point.value for point in self._entry_points()}
        module = f"{self._package}.{name}" if name in (self._built_in or ()) else points[name]
        try:
            importlib.import_module(module.partition(":")[0])
        except ImportError as error:
            raise PluginError(
                f"the {self.kind} {name!r} cannot be imported from {module}: {error}"
            ) from error
        if name not in self._found:
            raise PluginError(f"{module} does not register a {self.kind} called {name!r}")

    def _unknown(self, name: str, names: list[str], package: str | None) -> str:
        if package:
            return (
                f"unknown {self.kind} {name!r}: it comes with the package {package}, which is not "
                f"installed; run: pip install '{package}'"
            )
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"; perhaps you meant {close[0]!r}" if close else ""
        return (
            f"unknown {self.kind} {name!r}; available: {', '.join(names)}{hint}. "
            f"If it comes with another package, install that package (entry points '{self._group}')"
        )

    def _entry_points(self) -> metadata.EntryPoints:
        return metadata.entry_points(group=self._group)
