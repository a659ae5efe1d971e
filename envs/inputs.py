"""Checks of what a caller gives an environment: actions, seeds, sizes and options."""

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
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor that requires its gradient
        raise EnvError(f"{what} must be {n} numbers, got {type(values).__name__} {values!r:.60}") from None
    if array.shape != (n,):
        raise EnvError(f"{what} must have shape ({n},), got {array.shape}")
    numbers: list[float] = array.tolist()
    if not all(map(math.isfinite, numbers)):
        raise EnvError(f"{what} must be finite, got {numbers}")
    return numbers


def parse_seed(seed: object) -> int | None:
    """Return the seed of a reset, None if there is none, or raise `EnvError`."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise EnvError(f"a seed must be a non-negative integer, got {seed!r:.60}")
    return int(seed)
