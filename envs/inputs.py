"""Checks of what a caller gives an environment: actions, sizes and options."""

import math

import numpy as np

from nsde_policy.errors import EnvError


def require_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise `EnvError` unless `value` is one of the allowed ones."""
    if value not in allowed:
        raise EnvError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def parse_size(name: str, value: object) -> int:
    """Return the side of a picture in pixels, or raise `EnvError`."""
    if not isinstance(value, int) or not 16 <= value <= 8192:
        raise EnvError(f"{name} must be an integer from 16 to 8192, got {value!r}")
    return value


def parse_floats(values: object, n: int, what: str) -> list[float]:
    """Return `values` as n finite floats, or raise `EnvError`."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor that requires its gradient
        raise EnvError(f"{what} must be {n} numbers, got {type(values).__name__} {values!r:.60}") from None
    if array.shape != (n,):
        raise EnvError(f"{what} must have shape ({n},), got {array.shape}")
    numbers: list[float] = array.tolist()
    if not all(map(math.isfinite, numbers)):
        raise EnvError(f"{what} must be finite, got {numbers}")
    return numbers
