"""Parse and check observations from a robot; needs numpy only.

An observation is an array, a tensor, a list of numbers, or a dict of named observations, which the policy's
encoder turns into one vector (`encoders/`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nsde_policy.encoders import get_encoder
from nsde_policy.encoders.base import STATE_KEY
from nsde_policy.encoders.identity import describe_value, to_floats
from nsde_policy.errors import NonFiniteObservationError, PolicyInputError
from nsde_policy.inference.history import LARGEST_FLOAT32
from nsde_policy.inference.spec import PolicySpec

LARGEST_ANGLE = 4 * math.pi
"""Angles beyond two turns are taken for degrees or for another column."""
FAR_OUTSIDE = 1.0
"""Largest plausible distance from the demonstrated range, as a multiple of that range."""

TINY_FRACTION = 0.02
"""If all values are outside the demonstrated range and below this fraction of it, the unit is wrong."""


Encode = Callable[[Mapping[str, Any]], np.ndarray]
"""Encodes a dict of named observations as a vector, or as one row per row of a batch."""


def parse_observation(given: Any, spec: PolicySpec, encode: Encode | None = None) -> np.ndarray:
    """Return one finite observation, (obs_dim,), or raise `PolicyInputError`.

    Args:
        given: Observation in any form that this module accepts.
        spec: Sizes and ranges of the policy.
        encode: Encodes named observations; by default the encoder of `spec`, which knows no images.
    """
    array = _to_vector(given, spec, encode)
    if array.shape != (spec.obs_dim,):
        raise PolicyInputError(f"observation must have shape ({spec.obs_dim},), got {array.shape}")
    return check_finite_observation(array)


def parse_plain_observation(given: Mapping[str, Any], spec: PolicySpec) -> np.ndarray:
    """Return the finite low-dimensional part of named observations, (plain_dim,); frames are not encoded."""
    plain = get_encoder(spec.encoder).encode(given)
    if plain.shape != (spec.plain_dim,):
        raise PolicyInputError(f"{STATE_KEY} must have shape ({spec.plain_dim},), got {plain.shape}")
    return check_finite_observation(plain)


def parse_single_observation(
    given: Any, spec: PolicySpec, encode: Encode | None = None
) -> tuple[np.ndarray, bool]:
    """Return one finite observation, (obs_dim,), and whether it was a batch of one, as LeRobot sends it."""
    array = _to_vector(given, spec, encode)
    is_batch = array.shape == (1, spec.obs_dim)
    return parse_observation(array[0] if is_batch else array, spec), is_batch


def parse_observations(given: Any, spec: PolicySpec, encode: Encode | None = None) -> np.ndarray:
    """Return one observation (obs_dim,) or a batch (B, obs_dim), finite, or raise `PolicyInputError`."""
    array = _to_vector(given, spec, encode)
    if array.ndim not in (1, 2) or array.shape[-1] != spec.obs_dim or not len(array):
        raise PolicyInputError(
            f"observations must have shape ({spec.obs_dim},) or (B, {spec.obs_dim}), got {array.shape}"
        )
    return check_finite_observation(array)


def find_implausible(obs: np.ndarray, spec: PolicySpec) -> str | None:
    """Return why one observation (obs_dim,) is implausible compared with the demonstrations, or None.

    It detects degrees instead of radians, another unit of length, and columns in another order, as far as a
    single observation shows them.
    """
    tiny = compared = 0
    plain = obs[: spec.plain_dim].tolist()  # codes of images are always in the range of the frame
    for column, (value, low, high) in enumerate(zip(plain, spec.low, spec.high, strict=False)):
        if column in spec.circular:
            if abs(value) > LARGEST_ANGLE:
                return (
                    f"obs[{column}] must be an angle in radians, got {value:g}; "
                    "check for degrees or columns in another order"
                )
            continue
        slack = FAR_OUTSIDE * (high - low)
        if not low - slack <= value <= high + slack:
            return (
                f"obs[{column}] is {value:g}, but was in [{low:g}, {high:g}] in the demonstrations; "
                "check units and column order"
            )
        compared += 1
        tiny += not low <= value <= high and abs(value) < TINY_FRACTION * max(abs(low), abs(high))
    if compared >= 3 and tiny == compared:
        return (
            f"all values are far below the demonstrated range, got {obs.tolist()}; "
            "check units (metres instead of pixels?)"
        )
    return None


def check_plausible(obs: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """Return `obs`, or raise `PolicyInputError` with the reason if it is implausible."""
    if (reason := find_implausible(obs, spec)) is not None:
        raise PolicyInputError(f"implausible observation: {reason}")
    return obs


def _to_vector(given: Any, spec: PolicySpec, encode: Encode | None) -> np.ndarray:
    if not isinstance(given, Mapping):
        if spec.cameras and np.shape(given)[-1:] != (spec.obs_dim,):
            raise PolicyInputError(
                f"this policy needs a dict of observations: {STATE_KEY!r} ({spec.plain_dim},) and "
                + ", ".join(f"{camera.name!r} {camera.shape} uint8" for camera in spec.cameras)
                + f"; got {describe_value(given)}"
            )
        return to_floats(given)
    if encode is not None:
        return encode(given)
    if spec.cameras:
        raise PolicyInputError("images need the encoder of a policy: give them to its select_action")
    return get_encoder(spec.encoder).encode(given)


def check_finite_observation(array: np.ndarray) -> np.ndarray:
    """Return observations, or raise `NonFiniteObservationError` if they are not finite in float32."""
    if not (np.abs(array) <= LARGEST_FLOAT32).all():
        raise NonFiniteObservationError(f"observation must be finite, got {array.tolist()!s:.200}")
    return array
