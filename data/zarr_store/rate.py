"""Writing the rate into a store that does not record it."""

import json
import os
from pathlib import Path
from typing import Any

from nsde_policy.data.types import check_rate
from nsde_policy.data.zarr_store.store import Store
from nsde_policy.errors import DemoError
from nsde_policy.files import lock_directory, read_json, replace_file


def set_rate(path: Path, rate_hz: float) -> float | None:
    """Write the frames per second into the attributes of a store, atomically; nothing else changes.

    Returns:
        The rate that the store recorded before, None if it had none.

    Raises:
        DemoError: If it is not a zarr directory, or another process is writing to it.
    """
    check_rate(rate_hz)
    with Store(path) as store:
        if store.kind == "zip":
            raise DemoError(
                f"{path} is a zip file, which cannot be changed in place; unpack it first (unzip {path} -d "
                f"DIRECTORY), or give the rate to training: --rate {rate_hz:g}"
            )
        before, is_v2 = store.attributes.get("rate_hz"), store.zarr_format == 2
    lock = lock_directory(path)
    try:
        if is_v2:
            _edit(path / ".zmetadata", ("metadata", ".zattrs"), rate_hz)  # a copy for other readers
            _edit(path / ".zattrs", (), rate_hz, create=True)
        else:
            _edit(path / "zarr.json", ("attributes",), rate_hz)
    finally:
        os.close(lock)
    return before


def _edit(file: Path, keys: tuple[str, ...], rate_hz: float, *, create: bool = False) -> None:
    """Set `rate_hz` in a JSON file, in the object below `keys`."""
    if not file.exists() and not create:
        return
    values: dict[str, Any] = read_json(file, error=DemoError, allow_nan=True) if file.exists() else {}
    attributes = values
    for key in keys:
        attributes = attributes.setdefault(key, {})
        if not isinstance(attributes, dict):
            raise DemoError(f"{file}: {key} is {attributes!r:.40}, expected a JSON object; correct it")
    attributes["rate_hz"] = rate_hz
    replace_file(file, json.dumps(values, indent=2).encode())
