"""Which arrays of demonstrations can be observations, actions or camera images, judged by their shapes."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from nsde_policy.errors import DemoError, suggest

from .source import MAX_COLUMNS, Source, get_short_name

Shape = tuple[int, ...]
CHANNELS = (1, 3, 4)
"""Numbers of colour channels of an image."""

NO_ROLE = re.compile(r"next[._]|task_index$")
"""What follows an action, and the number of a task, in the names of LeRobot."""


def is_camera(shape: Shape) -> bool:
    """Return whether rows of this shape, (frames, …), are images, channels first or last."""
    return len(shape) >= 4 and (shape[-1] in CHANNELS or shape[-3] in CHANNELS)


def is_colour(shape: Shape) -> bool:
    """Return whether an array of this shape holds colour images, (frames, height, width, 3)."""
    return len(shape) == 4 and shape[-1] == 3


def check_scale(name: str, dtype: np.dtype[np.generic], brightest: float) -> None:
    """Raise `DemoError` for images of bools or of numbers from 0 to 1, which would be black as uint8."""
    if dtype.kind == "b" or (dtype != np.uint8 and 0 < brightest <= 1):
        raise DemoError(
            f"{name} holds {dtype} images from 0 to {brightest:g}, expected brightness from 0 to 255: "
            "multiply them by 255 and store uint8"
        )


def find_cameras(source: Source) -> dict[str, Shape]:
    """Return the shapes of the camera arrays by name."""
    return {name: shape for name, shape in read_shapes(source).items() if is_camera(shape)}


def find_camera(source: Source, key: str) -> tuple[str, ...]:
    """Return the array of a camera; raise `DemoError` with the cameras there are if it does not exist."""
    names = source.resolve(key)
    if names[0] in source.find_arrays():
        return names
    cameras = find_cameras(source)
    similar = suggest(key, [*map(get_short_name, cameras), *cameras])
    raise DemoError(f"no camera {key!r} in {source.path}{similar}; it has: {', '.join(cameras) or 'none'}")


def read_shapes(source: Source) -> dict[str, Shape]:
    """Return the shapes of all readable arrays by name."""
    shapes = {}
    for name in source.find_arrays():
        with suppress(DemoError):
            shapes[name] = source.open_array(name).shape
    return shapes


def find_roles(shapes: Mapping[str, Shape]) -> tuple[list[str], list[str]]:
    """Return the low-dimensional arrays that can be observations, and those that can be actions.

    Arrays named like actions are not observations; without such a name, any array can hold the actions.
    `NO_ROLE` is neither.
    """
    low = [
        name
        for name, shape in shapes.items()
        if not is_camera(shape) and math.prod(shape[1:]) <= MAX_COLUMNS and not NO_ROLE.match(name)
    ]
    actions = [name for name in low if get_short_name(name).startswith(("act", "cmd", "command", "target"))]
    return [name for name in low if name not in actions], actions or low


def find_keys(source: Source, obs_keys: Sequence[str], act_key: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the arrays of observations and actions; raise with the flags to use if they do not exist."""
    if not obs_keys:
        raise DemoError("no observation array was named; give at least one, such as 'state'")
    obs, act = [name for key in obs_keys for name in source.resolve(key)], source.resolve(act_key)
    arrays = source.find_arrays()
    if not arrays:
        return obs, act  # an empty store, which has no episodes either
    shapes = read_shapes(source)
    observations, actions = find_roles(shapes)
    use = f"use --obs-keys {' '.join(name for name in observations if name not in act)}"
    for key in obs:
        if key not in arrays:
            raise DemoError(source.describe_missing(key), use)
        if key in act:
            raise DemoError(f"{key} is the action and cannot be an observation too", use)
        if is_camera(shapes.get(key, ())):
            raise DemoError(
                f"{key} has shape {shapes[key]}: camera images cannot be observations, which are "
                "low-dimensional",
                f"leave it out: {use}",
            )
    for key in act:
        if key not in arrays:
            others = [name for name in actions if name not in obs]
            raise DemoError(source.describe_missing(key), f"use --act-key {' or '.join(others or actions)}")
    return obs, act


def check_robot(path: Path, sizes: tuple[int, int], expected: tuple[int, int]) -> None:
    """Raise `DemoError` unless observations and actions have the sizes that a run was trained on."""
    if sizes != expected:
        raise DemoError(
            f"{path} has observations of {sizes[0]} and actions of {sizes[1]} numbers, the run was trained "
            f"on {expected[0]} and {expected[1]}: give --demos a store of the same robot"
        )
