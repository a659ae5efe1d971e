"""Checks of what a caller gives an environment: actions, names and options."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from nsde_policy.errors import EnvError


def require_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise `EnvError` unless `value` is one of the allowed ones."""
    if value not in allowed:
        raise EnvError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


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


def parse_state(
    options: Mapping[str, object] | None, low: Sequence[float], high: Sequence[float]
) -> list[float] | None:
    """Return the state that the options of `reset` give, None without; raise `EnvError` if it is outside."""
    if not options:
        return None
    if [*options] != ["state"]:
        raise EnvError(f"reset takes the option 'state', got {[*options]}")
    state = parse_floats(options["state"], len(low), "options['state']")
    if not all(a <= value <= b for a, value, b in zip(low, state, high, strict=True)):
        raise EnvError(f"options['state'] must lie between {[*low]} and {[*high]}, got {state}")
    return state
