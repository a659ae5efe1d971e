"""Names of earlier versions: they still work, warn, and lead to what replaced them."""

import sys
import warnings
from typing import Any

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


def get_renamed(module: str, name: str) -> Any:
    """Return what replaced a name of a module and warn; call it in the `__getattr__` of the module.

    Raises:
        AttributeError: If the module never had this name.
    """
    if (new := RENAMED.get(module, {}).get(name)) is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is now {module}.{new}", DeprecationWarning, stacklevel=3)
    return getattr(sys.modules[module], new)
