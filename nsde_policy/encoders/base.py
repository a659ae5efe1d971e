"""The interface of an encoder."""

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from nsde_policy.data import Demonstrations


class Encoder(abc.ABC):
    """Turns the named observations of one control period into the vector that a policy is trained on.

    Everything behind it (model, control session, export) sees that vector alone. Register it with
    `register_encoder`; a run uses the one that `demos.encoder` names.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def encode(self, observations: Mapping[str, Any]) -> np.ndarray:
        """Encode named observations, each (...) or a batch (B, ...), as (obs_dim,) or (B, obs_dim).

        Raises:
            PolicyInputError: If a name is missing, or a value has the wrong shape.
        """

    def encode_demonstrations(self, demos: "Demonstrations") -> "Demonstrations":
        """Encode recorded observations in the same way; by default they are used as recorded."""
        return demos
