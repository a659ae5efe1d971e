"""Which arrays of a store can be observations, actions or camera images, judged by their shapes."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nsde_policy.data.zarr_store.store import MAX_COLUMNS, Store
from nsde_policy.errors import DemoError

Shape = tuple[int, ...]
CHANNELS = (1, 3, 4)
"""Numbers of colour channels of an image."""


def is_camera(shape: Shape) -> bool:
    """Return whether rows of this shape, (frames, …), are images, channels first or last."""
    return len(shape) >= 4 and (shape[-1] in CHANNELS or shape[-3] in CHANNELS)


def is_colour(shape: Shape) -> bool:
    """Return whether an array of this shape holds colour images, (frames, height, width, 3)."""
    return len(shape) == 4 and shape[-1] == 3


def find_cameras(path: Path) -> dict[str, Shape]:
    """Return the shapes of the camera arrays of a zarr store by name; empty for other formats."""
    try:
        with Store(path) as store:
            shapes = read_shapes(store)
    except DemoError:
        return {}
    return {name: shape for name, shape in shapes.items() if is_camera(shape)}


def read_shapes(store: Store) -> dict[str, Shape]:
    """Return the shapes of all readable arrays below data/, by their names without data/."""
    shapes = {}
    for name in store.find_arrays("data"):
        with suppress(DemoError):
            shapes[name.removeprefix("data/")] = store.open_array(name).shape
    return shapes


def find_roles(shapes: Mapping[str, Shape]) -> tuple[list[str], list[str]]:
    """Return the low-dimensional arrays that can be observations, and those that can be actions.

    Arrays named like actions are not observations; without such a name, any array can hold the actions.
    """
    low = [
        name for name, shape in shapes.items() if not is_camera(shape) and math.prod(shape[1:]) <= MAX_COLUMNS
    ]
    actions = [name for name in low if name.rpartition("/")[2].startswith(("act", "command", "target"))]
    return [name for name in low if name not in actions], actions or low


def check_keys(store: Store, obs_keys: Sequence[str], act_key: str) -> None:
    """Raise `DemoError` for arrays that do not exist or hold images; the message names the flags to use."""
    if not obs_keys:
        raise DemoError("no observation array was named; give at least one, such as 'state'")
    known = store.find_arrays("data")
    if not known:
        return  # an empty store, which has no episodes either
    shapes = read_shapes(store)
    observations, actions = find_roles(shapes)
    use = f"use --obs-keys {' '.join(name for name in observations if name != act_key)}"
    for key in obs_keys:
        if f"data/{key}" not in known:
            raise DemoError(store.describe_missing(f"data/{key}"), use)
        if is_camera(shapes.get(key, ())):
            raise DemoError(
                f"data/{key} has shape {shapes[key]}: camera images cannot be observations, which are "
                "low-dimensional",
                f"leave it out: {use}",
            )
    if f"data/{act_key}" not in known:
        others = [name for name in actions if name not in obs_keys]
        raise DemoError(
            store.describe_missing(f"data/{act_key}"), f"use --act-key {' or '.join(others or actions)}"
        )
