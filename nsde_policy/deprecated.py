"""Names of earlier versions: they still work, warn, and lead to what replaced them."""

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

RENAMED = {
    "nsde_policy.errors": {
        "ArchiveError": "DemoError",
        "ArrayChoiceError": "DemoError",
        "ArrayError": "DemoError",
        "DamagedStoreError": "DemoError",
        "DivergedError": "NsdePolicyError",
        "DownloadError": "NsdePolicyError",
        "EnvInputError": "EnvError",
        "EpisodeError": "DemoError",
        "ExpertError": "NsdePolicyError",
        "ExportError": "NsdePolicyError",
        "FrameError": "PolicyInputError",
        "GraphError": "CheckpointError",
        "ImplausibleFrameError": "PolicyInputError",
        "MissingFrameError": "PolicyInputError",
        "NonFiniteObservationError": "PolicyInputError",
        "NotAStoreError": "DemoError",
        "OutputError": "NsdePolicyError",
        "ProtocolError": "RemoteError",
        "RemoteConnectionError": "RemoteError",
        "RemotePlanningError": "RemoteError",
        "RemoteRefusedError": "RemoteError",
        "RemoteTimeoutError": "RemoteError",
        "RunLockedError": "CheckpointError",
        "SessionClosedError": "SessionStoppedError",
        "StoreLockedError": "DemoError",
        "VideoError": "DemoError",
    },
}
"""Renamed names by their module."""


def get_renamed(module: str, name: str) -> object:
    """Return what replaced a name of a module and warn; call it in the `__getattr__` of the module.

    Raises:
        AttributeError: If the module never had this name.
    """
    if (new := RENAMED.get(module, {}).get(name)) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is now {module}.{new}", DeprecationWarning, stacklevel=3)
    return getattr(sys.modules[module], new)


MOVED = {
    f"nsde_policy.inference.{name}": f"nsde_policy.planner.{name}"
    for name in ("calibration", "history", "observation", "worker")
} | {"nsde_policy.inference.spec": "nsde_policy.planner.interface"}
"""Modules that are in another package now."""


class MovedModules(MetaPathFinder, Loader):
    """Imports modules by their earlier names, with a warning; the names in them are the same objects."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a module that this class loads, or None if its name is not an earlier one."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module with the names of the one that replaced it."""
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}", DeprecationWarning, stacklevel=2)
        found = vars(importlib.import_module(new))
        vars(module).update({name: value for name, value in found.items() if not name.startswith("__")})


def find_moved_modules() -> None:
    """Let `import` find modules by their earlier names."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
