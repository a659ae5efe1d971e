"""Observations as they come from robots, turned into what a policy takes; numpy alone.

An array or a tensor, a list of numbers, or a dict of named observations, which the policy's encoder turns into
one vector (`encoders/`).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nsde_policy.encoders import get_encoder
from nsde_policy.encoders.identity import to_floats
from nsde_policy.errors import NonFiniteObservationError, PolicyInputError
from nsde_policy.inference.spec import PolicySpec

LARGEST_ANGLE = 4 * math.pi
"""An angle beyond two turns is no angle in radians, or stands in the wrong column."""
FAR_OUTSIDE = 1.0
"""How far outside the demonstrations a number cannot be right, in ranges of its own."""

TINY = 0.02
"""Numbers that are all outside the demonstrations and below this share of their size are in another unit."""


def as_observation(given: Any, spec: PolicySpec) -> np.ndarray:
    """One finite observation, (obs_dim,); raises `PolicyInputError` for anything else."""
    array = _numbers(given, spec)
    if array.shape != (spec.obs_dim,):
        raise PolicyInputError(
            f"an observation of this policy has shape ({spec.obs_dim},), got {array.shape}"
        )
    return _finite(array)


def as_lone_observation(given: Any, spec: PolicySpec) -> tuple[np.ndarray, bool]:
    """One finite observation, (obs_dim,), and whether it came in a batch of one, as in LeRobot."""
    array = _numbers(given, spec)
    in_batch = array.shape == (1, spec.obs_dim)
    return as_observation(array[0] if in_batch else given, spec), in_batch


def as_observations(given: Any, spec: PolicySpec) -> np.ndarray:
    """One observation or a batch of them, (obs_dim,) or (B, obs_dim), finite."""
    array = _numbers(given, spec)
    if array.ndim not in (1, 2) or array.shape[-1] != spec.obs_dim or not len(array):
        raise PolicyInputError(
            f"observations of this policy have shape ({spec.obs_dim},) or (B, {spec.obs_dim}), "
            f"got {array.shape}"
        )
    return _finite(array)


def implausible(obs: np.ndarray, spec: PolicySpec) -> str | None:
    """Why an observation cannot be right, seen against the demonstrations; None where it can.

    It finds degrees where radians belong, another unit of length, another order of the columns: as far as
    one observation, (obs_dim,), gives them away.
    """
    tiny = compared = 0
    for column, (value, low, high) in enumerate(zip(obs.tolist(), spec.low, spec.high, strict=False)):
        if column in spec.circular:
            if abs(value) > LARGEST_ANGLE:
                return (
                    f"obs[{column}] is an angle in radians, got {value:g}: "
                    "degrees, or columns in another order"
                )
            continue
        slack = FAR_OUTSIDE * (high - low)
        if not low - slack <= value <= high + slack:
            return (
                f"obs[{column}] lay in [{low:g}, {high:g}] in the demonstrations, got {value:g}: "
                "another unit, or columns in another order"
            )
        compared += 1
        tiny += not low <= value <= high and abs(value) < TINY * max(abs(low), abs(high))
    if compared >= 3 and tiny == compared:
        return f"every number is next to nothing against the demonstrations, got {obs.tolist()}: another unit"
    return None


def check_plausible(obs: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """`obs` itself, where it can be right; raises `PolicyInputError` with the reason where it cannot."""
    if (reason := implausible(obs, spec)) is not None:
        raise PolicyInputError(f"this observation cannot be right: {reason}")
    return obs


def _numbers(given: Any, spec: PolicySpec) -> np.ndarray:
    return get_encoder(spec.encoder).encode(given) if isinstance(given, Mapping) else to_floats(given)


def _finite(array: np.ndarray) -> np.ndarray:
    if not np.isfinite(array).all():
        raise NonFiniteObservationError(f"an observation must be finite, got {array.tolist()!s:.200}")
    return array
