"""Registries of plug-ins: methods, tasks, readers and encoders, each found by name.

A plug-in is found in one of three places:

1. a module of the registry's own packages (`nsde_policy/methods/baselines/knn.py` is the method `knn`);
2. an entry point of an installed package (group `nsde_policy.methods`, name `my_method`, value a module);
3. a call of the registry's decorator in the running program.

A module may register further plug-ins, best with names that start with its own: `adroit-door` in
`nsde_policy/tasks/adroit.py`. They are found by importing all modules.

Nothing is imported before its name is asked for, so that help texts stay fast.
"""

import difflib
import importlib
import logging
import pkgutil
from collections.abc import Collection
from functools import cached_property
from importlib import metadata
from typing import Generic, TypeVar

from nsde_policy.errors import ConfigError, PluginError, summarize_error

logger = logging.getLogger(__name__)

Plugin = TypeVar("Plugin")


class Registry(Generic[Plugin]):
    """Plug-ins of one kind, imported on demand.

    Modules of `packages` but their `helpers` are the built-in ones. Those of other packages are entry points
    in the group `nsde_policy.` and the last part of the first package's name. Messages call them `noun`.
    """

    def __init__(
        self,
        noun: str,
        *packages: str,
        helpers: Collection[str] = ("base", "registry"),
    ) -> None:
        self.noun = noun
        self._packages = packages
        self._group = "nsde_policy." + packages[0].rsplit(".", 1)[-1]
        self._helpers = helpers
        self._plugins: dict[str, Plugin] = {}
        self._sources: dict[str, str] = {}
        """Modules that registered the plug-ins, by name."""
        self._broken: dict[str, str] = {}
        """What is wrong with modules that cannot be imported, by name."""

    def add(self, name: str, plugin: Plugin, *, module: str) -> None:
        """Register a plug-in; raise `ConfigError` if another module has registered this name already."""
        first = self._sources.setdefault(name, module)
        if first != module:
            raise ConfigError(f"{module} registers the {self.noun} {name!r}, as {first} has done: rename one")
        self._plugins[name] = plugin

    def names(self) -> list[str]:
        """List the names of all modules and registered plug-ins, built-in ones first, importing none."""
        return list(dict.fromkeys([*self._modules, *self._plugins]))

    def __contains__(self, name: str) -> bool:
        """Return whether a plug-in or its module has this name; imports all modules if they may define it."""
        return name in self.names() or name in self.load_all()

    def load_all(self) -> dict[str, Plugin]:
        """Import and return all plug-ins by name; log once which modules cannot be imported."""
        for name in self._modules:
            if name in self._broken:
                continue
            try:
                self._import(name)
            except PluginError as error:
                self._broken[name] = str(error)
                logger.warning("left out: %s", error)
        return {name: self._plugins[name] for name in self.names() if name in self._plugins}

    def get(self, name: str) -> Plugin:
        """Return a plug-in by name, importing its module on first use; raise `PluginError` if that fails."""
        if name not in self._plugins and name in self._modules:
            self._import(name)
        if name not in self._plugins and name not in self.load_all():
            raise PluginError(self._describe_unknown(name))
        return self._plugins[name]

    @cached_property
    def _modules(self) -> dict[str, str]:
        """Dotted names of built-in modules, then of entry points, by the name of the plug-in."""
        folders = {package: importlib.import_module(package).__path__ for package in self._packages}
        packages = {
            module.name: package for package in folders for module in pkgutil.iter_modules(folders[package])
        }
        modules = {name: f"{packages[name]}.{name}" for name in sorted(packages) if name not in self._helpers}
        for point in metadata.entry_points(group=self._group):
            modules.setdefault(point.name, point.module)
        return modules

    def _import(self, name: str) -> None:
        """Import the module of a plug-in; raise `PluginError` if it cannot be imported."""
        module = self._modules[name]
        try:
            importlib.import_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # another package may raise anything, and call sys.exit
            what = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            raise PluginError(
                f"the {self.noun} {name!r} cannot be imported from {module}: {what}{summarize_error(error)}"
            ) from error

    def _describe_unknown(self, name: str) -> str:
        """Return the error message for a name that is not registered, with names like it."""
        close = difflib.get_close_matches(name, self._plugins, n=5, cutoff=0.0)
        unavailable = "".join(f"; unavailable: {why}" for why in self._broken.values())
        return (
            f"unknown {self.noun} {name!r}; the closest are {', '.join(close)}{unavailable}. If another "
            f"package provides it, install that package (entry points '{self._group}')"
        )
