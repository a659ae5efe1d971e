"""Registry of readers: add a file to this folder, or an entry point of another package.

    @register_reader
    class MyReader(Reader):
        name = "my_format"

Entry points of other packages belong to the group `nsde_policy.readers`.
"""

import inspect
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nsde_policy.data.readers.base import Reader
from nsde_policy.data.types import Demonstrations
from nsde_policy.registry import Registry

logger = logging.getLogger(__name__)

READERS: Registry[Reader] = Registry("reader", "nsde_policy.data.readers")
FALLBACK = "zarr"
"""Reader of paths that no other reader recognises; it reports what is wrong with them."""


def register_reader(cls: type[Reader]) -> type[Reader]:
    """Register a reader under its `name`; decorates the class."""
    READERS.add(cls.name, cls())
    return cls


def find_reader(path: Path) -> Reader:
    """Return the reader that recognises a file or folder, `FALLBACK` if none does."""
    readers = (reader for name, reader in READERS.load_all().items() if name != FALLBACK)
    return next((reader for reader in readers if _recognises(reader, path)), READERS.get(FALLBACK))


def _recognises(reader: Reader, path: Path) -> bool:
    try:
        return reader.probe(path)
    except (Exception, SystemExit) as error:  # of another package, which must not keep others from reading
        logger.warning("left out: the reader %r raised %r for %s", reader.name, error, path)
        return False


def load_demonstrations(
    path: Path | str,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    angles: Sequence[int] | None = None,
    act_angles: Sequence[int] | None = None,
    rate_hz: float | None = None,
    accept_omitted_chunks: bool = False,
    **options: object,
) -> Demonstrations:
    """Load demonstrations with the reader that recognises their format.

    Args:
        path: File or folder; zarr directories and zips of them are built in.
        obs_keys: Arrays that make up an observation, side by side; those with more axes, such as
            (frames, 9, 2) keypoints, are flattened.
        act_key: Array that holds the actions.
        angles: Columns of the observation that are angles in radians; None to use what the store says.
        act_angles: The same for the action.
        rate_hz: Frames per second; None to use what the store says.
        accept_omitted_chunks: Read missing chunks as the fill value; passed only to readers whose `load` has
            this argument, such as that of zarr stores.
        **options: Passed to the reader.

    Raises:
        DemoError: If the demonstrations are damaged or do not have the expected form.
    """
    path = Path(path)
    reader = find_reader(path)
    if accept_omitted_chunks and "accept_omitted_chunks" in inspect.signature(reader.load).parameters:
        options["accept_omitted_chunks"] = True
    demos = reader.load(path, obs_keys=obs_keys, act_key=act_key, **options)
    return replace(
        demos,
        angles=demos.angles if angles is None else tuple(angles),
        act_angles=demos.act_angles if act_angles is None else tuple(act_angles),
        rate_hz=demos.rate_hz if rate_hz is None else rate_hz,
        source=str(path),
    )
