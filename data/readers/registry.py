"""Registry of readers: add a file to this folder, or an entry point of another package.

    @register_reader
    class MyReader(Reader):
        name = "my_format"

Entry points of other packages belong to the group `nsde_policy.readers`.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from nsde_policy.errors import DemoError
from nsde_policy.files import PARTIAL
from nsde_policy.registry import Registry

from ..roles import find_keys
from ..source import Source, check_array_count, join_columns
from ..types import Demonstrations
from .base import Reader

logger = logging.getLogger(__name__)

HELPERS = ("base", "dataset_toml", "groups", "registry")
READERS: Registry[Reader] = Registry("reader", "nsde_policy.data.readers", helpers=HELPERS)
FALLBACK = "zarr"
"""Reader of paths that no other reader recognises; it reports what is wrong with them."""


def register_reader(cls: type[Reader]) -> type[Reader]:
    """Register a reader under its `name`; decorates the class."""
    READERS.add(cls.name, cls(), module=cls.__module__)
    return cls


def find_reader(path: Path) -> Reader:
    """Return the reader that recognises a file or folder, `FALLBACK` if none does."""
    for name, reader in reversed(READERS.load_all().items()):  # those of other packages first
        try:
            if name != FALLBACK and reader.probe(path):
                return reader
        except (Exception, SystemExit) as error:  # of another package, which must not stop others
            logger.warning("left out: the reader %r raised %r for %s", name, error, path)
    return READERS.get(FALLBACK)


def open_source(path: Path | str, *, accept_omitted_chunks: bool = False) -> Source:
    """Open demonstrations with the reader that recognises their format; raise `DemoError` for damage.

    With `accept_omitted_chunks`, missing chunks are read as the fill value, if the format has them.
    """
    path = Path(path)
    if path.suffix == PARTIAL:
        raise DemoError(f"{path} is incomplete: delete it and repeat the command that writes it")
    source = find_reader(path).open(path)
    source.accept_omitted_chunks = accept_omitted_chunks
    check_array_count(len(source.find_arrays()), source.path)
    return source


def load_demonstrations(
    path: Path | str,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    angles: Sequence[int] | None = None,
    act_angles: Sequence[int] | None = None,
    rate_hz: float | None = None,
    accept_omitted_chunks: bool = False,
) -> Demonstrations:
    """Load the low-dimensional part of demonstrations of any format.

        demos = load_demonstrations("my_robot")
        for episode in demos:
            print(len(episode), episode.obs.shape, episode.act.shape)

    Args:
        path: File or folder.
        obs_keys: Arrays that make up an observation, side by side; those with more axes, such as
            (frames, 9, 2) keypoints, are flattened. `state` also stands for what a format calls so.
        act_key: Array that holds the actions.
        angles: Columns of the observation that are angles in radians; None to use what the files say.
        act_angles: The same for the action.
        rate_hz: Frames per second; None to use what the files say.
        accept_omitted_chunks: Read missing chunks of a zarr store as the fill value.

    Raises:
        DemoError: If the demonstrations are damaged or do not have the expected form.
    """
    with open_source(path, accept_omitted_chunks=accept_omitted_chunks) as source:
        return load_from(
            source, obs_keys=obs_keys, act_key=act_key, angles=angles, act_angles=act_angles, rate_hz=rate_hz
        )


def load_from(
    source: Source,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    angles: Sequence[int] | None = None,
    act_angles: Sequence[int] | None = None,
    rate_hz: float | None = None,
) -> Demonstrations:
    """Load the low-dimensional part of an open source; see `load_demonstrations`."""
    obs_names, act_names = find_keys(source, obs_keys, act_key)
    ends, arrays = source.open_episodes([*obs_names, *act_names])
    split = len(obs_names)
    obs, act = (join_columns(part, ends) for part in (arrays[:split], arrays[split:]))
    limits = source.act_limits
    if limits is not None and len(limits[0]) != act.values.shape[1]:
        raise DemoError(
            f"{source.path} limits {len(limits[0])} action columns (action_space), but its actions have "
            f"{act.values.shape[1]}: correct or remove the limits"
        )
    return Demonstrations(
        obs.values,
        act.values,
        ends,
        angles=obs.angles if angles is None else tuple(angles),
        act_angles=act.angles if act_angles is None else tuple(act_angles),
        rate_hz=source.rate_hz if rate_hz is None else rate_hz,
        act_limits=limits,
        source=str(source.path),
        obs_names=obs.columns,
        act_names=act.columns,
    )
