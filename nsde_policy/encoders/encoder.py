"""The interface of an encoder; no numpy and no torch, so that the command line starts fast."""

from __future__ import annotations

import abc
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from nsde_policy.config import EncoderConfig, ImageEncoderConfig

if TYPE_CHECKING:
    import numpy as np

    from nsde_policy.data import Demonstrations

    from .encoder_model import EncoderModel

IMAGE_KEY = "observation.images."
"""Names of images start with this, followed by the name of the camera."""


class Encoder(abc.ABC):
    """Turns the named observations of one policy period into the vector that a policy is trained on.

    Everything behind it (model, control session, export) sees that vector alone. Register it with
    `register_encoder`; a run uses the one that `demos.encoder` names.

    An encoder of images declares `config` and `model`, and its model encodes the images of
    `demos.images`. It is trained before the policy if `config` is a `TrainedEncoderConfig`, and together with
    it otherwise. Its features follow the low-dimensional part of the observation.
    """

    name: ClassVar[str]
    config: ClassVar[type[EncoderConfig]] = EncoderConfig
    """Class of its settings; an `ImageEncoderConfig` if it encodes images."""
    model: ClassVar[str] = ""
    """Class of its model if it encodes images, `module:class`, imported on first use."""
    small: ClassVar[EncoderConfig | None] = None
    """Settings with which a CPU trains it, if they differ from the defaults of `config`."""
    features_are_positions: ClassVar[bool] = False
    """Whether the features of a camera are positions in its frame, x and y interleaved, from -1 to 1."""

    @property
    def takes_images(self) -> bool:
        """Whether it encodes images."""
        return issubclass(self.config, ImageEncoderConfig)

    @abc.abstractmethod
    def encode(self, observations: Mapping[str, object]) -> np.ndarray:
        """Encode the low-dimensional part, each (...) or a batch (B, ...), as a vector or (B, values).

        `observation.state` and `observation.environment_state` are arrays of float64; values with other names
        come as they were given.

        Raises:
            PolicyInputError: If a name is missing, or a value has the wrong shape.
        """

    def encode_demonstrations(self, demos: Demonstrations) -> Demonstrations:
        """Encode recorded low-dimensional observations in the same way; by default as recorded."""
        return demos

    def model_class(self) -> type[EncoderModel]:
        """Return the class of its model, for encoders of images."""
        model: type[EncoderModel] = pkgutil.resolve_name(self.model)
        return model
