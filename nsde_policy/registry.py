"""Registries of plug-ins: methods, tasks, readers and encoders, each found by name.

A plug-in is found in one of three places:

1. a module of the registry's own package (`nsde_policy/methods/knn.py` is the method `knn`);
2. an entry point of an installed package (group `nsde_policy.methods`, name `my_method`, value a module);
3. a call of the registry's decorator in the running program.

A module can also hold a group of plug-ins whose names start with its own: `nsde_policy/tasks/adroit.py`
registers `adroit-door` and others, `nsde_policy/tasks/metaworld.py` `metaworld:reach-v3` and others.

Nothing is imported before its name is asked for, so that help texts stay fast.
"""

import contextlib
import difflib
import importlib
import logging
import pkgutil
import re
from functools import cached_property
from importlib import metadata
from typing import Generic, TypeVar

from nsde_policy.errors import ConfigError, PluginError, summarize_error

logger = logging.getLogger(__name__)

Plugin = TypeVar("Plugin")

_INFRASTRUCTURE = frozenset({"base", "base_model", "registry", "gym", "adapter", "detection", "live_table"})
"""Modules of a plug-in package that are not plug-ins."""
_PACKAGE = re.compile(r"\w[\w.-]*(==[\w.+!]+)?", re.ASCII)
"""Name and version of a distribution, as a run directory records them."""
MAX_LISTED = 20
"""Names that an error lists; of more it shows a few."""
SIMILARITY, SIMILARITY_IN_GROUP = 0.6, 0.75
"""Least similarity of a suggested name; more in a group, where names end alike: `-v3` of Meta-World."""


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
        self._broken: dict[str, str] = {}
        self._reported: set[str] = set()

    def add(self, name: str, plugin: Plugin) -> None:
        """Register a plug-in.

        Raises:
            ConfigError: If another plug-in has this name already.
        """
        known = self._found.get(name)
        if known is not None and getattr(known, "__module__", None) != getattr(plugin, "__module__", None):
            raise ConfigError(f"the {self.kind} {name!r} is registered already, by {known!r}: rename one")
        self._found[name] = plugin

    def __contains__(self, name: str) -> bool:
        """Return whether a plug-in or a group has this name; imports the group that the name starts with."""
        return name in self.names() or name in self.list_group(_find_group(name))

    def names(self) -> list[str]:
        """List the names of all plug-ins and groups, built-in ones first, without importing any."""
        modules = self._list_modules()
        groups = {*modules} - {*self._found}
        return list(dict.fromkeys([*modules, *(n for n in self._found if _find_group(n) not in groups)]))

    def list_group(self, name: str) -> list[str]:
        """Import a group and return the names in it; empty if it is not a group, or cannot be imported."""
        if name in self._list_modules() and name not in {*self._found, *self._broken}:
            with contextlib.suppress(PluginError):
                self._import(name)
        return [each for each in self._found if _find_group(each) == name and name not in self._found]

    def list_usable(self) -> list[str]:
        """Import all plug-ins and list their names; log once which packages cannot be imported."""
        for name, problem in self._find_broken().items():
            if name not in self._reported:
                logger.warning("left out: %s", problem)
                self._reported.add(name)
        return [name for name in self.names() if name in self._found or self.list_group(name)]

    def _find_broken(self) -> dict[str, str]:
        """Import all modules, each once, and return what is wrong with broken ones by name."""
        for name in [name for name in self._list_modules() if name not in self._broken]:
            try:
                self._import(name)
            except PluginError as error:
                self._broken[name] = str(error)
        return self._broken

    def load_all(self) -> list[Plugin]:
        """Import and return all plug-ins, except those of packages that cannot be imported."""
        self._find_broken()
        return list(self._found.values())

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
        for point in self._entry_points:
            if point.name in (name, _find_group(name)) and point.dist is not None:
                return f"{point.dist.name}=={point.dist.version}"
        return None

    def _load(self, name: str, package: str | None) -> None:
        """Import the module of a plug-in."""
        if name not in self._list_modules():
            group = self.list_group(_find_group(name))
            if name not in group:
                raise PluginError(self._unknown(name, package))
            return
        self._import(name)
        if name not in self._found:
            members = _abbreviate_names(self.list_group(name))
            found = f"choose one of its {self.kind}s: {members}" if members else "expected one of this name"
            raise PluginError(
                f"{self._find_module(name)} does not register a {self.kind} called {name!r}; {found}"
            )

    def _list_modules(self) -> list[str]:
        """List the names of built-in modules and entry points."""
        if self._built_in is None:
            path = importlib.import_module(self._package).__path__
            modules = [module.name for module in pkgutil.iter_modules(path)]
            self._built_in = [name for name in modules if name not in _INFRASTRUCTURE and name[0] != "_"]
        return [*self._built_in, *(point.name for point in self._entry_points)]

    def _find_module(self, name: str) -> str:
        """Return the dotted name of the module of a plug-in or group."""
        if name in (self._built_in or ()):
            return f"{self._package}.{name}"
        return {point.name: point.value for point in self._entry_points}[name].partition(":")[0]

    def _import(self, name: str) -> None:
        """Import the module of a plug-in or group.

        Raises:
            PluginError: If it cannot be imported.
        """
        module = self._find_module(name)
        try:
            importlib.import_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # another package may raise anything, and call sys.exit
            what = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
            raise PluginError(
                f"the {self.kind} {name!r} cannot be imported from {module}: {what}{summarize_error(error)}"
            ) from error

    def _unknown(self, name: str, package: str | None) -> str:
        """Return an error message that lists the plug-ins of the name's group, or else all of them."""
        if package:
            advice = f"; run: pip install '{package}'" if _PACKAGE.fullmatch(str(package)) else ""
            return (
                f"unknown {self.kind} {name!r}: it comes with the package {package!s:.80}, which is not "
                f"installed{advice}"
            )
        broken: dict[str, str] = {}
        group, similarity = _find_group(name), SIMILARITY_IN_GROUP
        if shown := self.list_group(group):
            names = shown
        else:
            group, similarity = "", SIMILARITY
            broken = self._find_broken()
            parts = [self.list_group(each) or [each] for each in self.names() if each not in broken]
            shown = [f"{first} and {len(rest)} more" if rest else first for first, *rest in parts]
            names = [each for part in parts for each in part]
        ends = [each.removeprefix(group) for each in names]
        close = difflib.get_close_matches(name.removeprefix(group), ends, n=1, cutoff=similarity)
        hint = f"; perhaps you meant {group + close[0]!r}" if close else ""
        unavailable = "".join(f"; unavailable: {why}" for why in broken.values())
        return (
            f"unknown {self.kind} {name!r}; available: {_abbreviate_names(shown)}{unavailable}{hint}. "
            f"If it comes with another package, install that package (entry points '{self._group}')"
        )

    @cached_property
    def _entry_points(self) -> metadata.EntryPoints:
        """Entry points of installed packages; reading them takes milliseconds."""
        return metadata.entry_points(group=self._group)


def _find_group(name: str) -> str:
    """Return the start of a name that can be that of a group: `adroit` of `adroit-door`."""
    return re.split("[-:]", name)[0]


def _abbreviate_names(names: list[str]) -> str:
    """Join names for a message; of a long list, its size and three examples."""
    if len(names) <= MAX_LISTED:
        return ", ".join(names)
    return f"{len(names)}, such as {', '.join(names[:: len(names) // 3][:3])}"
