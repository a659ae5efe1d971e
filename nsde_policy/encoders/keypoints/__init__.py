"""Keypoints: a few image positions per frame, learned without labels by redrawing the frame from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsde_policy.encoders.identity import IdentityEncoder
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.encoders.registry import register_encoder

if TYPE_CHECKING:
    from nsde_policy.encoders.base_model import EncoderModel


@register_encoder
class KeypointEncoder(IdentityEncoder):
    """`observation.state`, followed by the keypoints of each camera, x and y in [-1, 1]."""

    name = "keypoints"
    config = KeypointConfig
    features_are_positions = True

    def model_class(self) -> type[EncoderModel]:
        """Return the class of the autoencoder."""
        from nsde_policy.encoders.keypoints.model import KeypointModel

        return KeypointModel
