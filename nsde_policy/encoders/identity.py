"""Low-dimensional observations, concatenated, with LeRobot's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsde_policy.core.spec import ENVIRONMENT_KEY, STATE_KEY
from nsde_policy.errors import PolicyInputError

from .encoder import Encoder
from .registry import register_encoder

if TYPE_CHECKING:
    import numpy as np


@register_encoder
class IdentityEncoder(Encoder):
    """`observation.state` followed by `observation.environment_state`, if there is one."""

    name = "identity"

    def encode(self, observations: Mapping[str, object]) -> np.ndarray:
        """Concatenate both parts."""
        import numpy as np

        if STATE_KEY not in observations:
            keys = ", ".join(map(repr, observations)) or "nothing"
            raise PolicyInputError(f"a dict of observations needs the key {STATE_KEY!r}, got {keys:.120}")
        names = [name for name in (STATE_KEY, ENVIRONMENT_KEY) if name in observations]
        parts = [np.asarray(observations[name]) for name in names]
        try:
            return np.concatenate(parts, axis=-1)
        except ValueError:
            pairs = zip(names, parts, strict=True)
            shapes = " and ".join(f"{name} {part.shape}" for name, part in pairs)
            raise PolicyInputError(f"these observations cannot be concatenated: {shapes}") from None
