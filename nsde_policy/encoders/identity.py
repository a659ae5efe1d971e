"""Low-dimensional observations, concatenated, with LeRobot's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsde_policy.encoders.base import ENVIRONMENT_KEY, STATE_KEY, Encoder
from nsde_policy.encoders.registry import register_encoder
from nsde_policy.errors import PolicyInputError

if TYPE_CHECKING:
    import numpy as np


@register_encoder
class IdentityEncoder(Encoder):
    """`observation.state` followed by `observation.environment_state`, if there is one."""

    name = "identity"

    def encode(self, observations: Mapping[str, Any]) -> np.ndarray:
        """Concatenate both parts."""
        import numpy as np

        if STATE_KEY not in observations:
            found = ", ".join(repr(key) for key in observations) or "nothing"
            raise PolicyInputError(f"a dict of observations needs the key {STATE_KEY!r}, found {found:.120}")
        parts = {
            key: to_floats(observations[key]) for key in (STATE_KEY, ENVIRONMENT_KEY) if key in observations
        }
        try:
            return np.concatenate(list(parts.values()), axis=-1)
        except ValueError:
            shapes = " and ".join(f"{key} {part.shape}" for key, part in parts.items())
            raise PolicyInputError(f"these observations cannot be concatenated: {shapes}") from None


def to_floats(given: Any, name: str = "observation") -> np.ndarray:
    """Convert an array, a tensor or a list to float64.

    Raises:
        PolicyInputError: If it does not hold real numbers; the message begins with `name`.
    """
    import numpy as np

    try:
        detach = getattr(given, "detach", None)  # a tensor, of a library that need not be installed
        if callable(detach):
            given = detach().cpu()
            given = given if given.is_complex() else given.double()  # numpy has no bfloat16
        if np.iscomplexobj(given):
            raise TypeError("complex numbers")
        return np.asarray(given, dtype=np.float64)
    except Exception:  # the conversion is code of the object, which may raise anything
        raise PolicyInputError(f"{name} must hold numbers, got {describe_value(given)}") from None


def describe_value(given: Any) -> str:
    """Format a value and its type for an error message, on one line."""
    try:
        text = " ".join(repr(given).split())
    except Exception:  # `__repr__` too is code of the object
        text = "that cannot be printed"
    return f"{type(given).__name__} {text:.60}"
