"""Keypoints: a few image positions per frame, learned without labels by redrawing the frame from them."""

from ..identity import IdentityEncoder
from ..registry import register_encoder
from .config import SMALL_ENCODER, KeypointConfig


@register_encoder
class KeypointEncoder(IdentityEncoder):
    """`observation.state`, followed by the keypoints of each camera, x and y in [-1, 1]."""

    name = "keypoints"
    config = KeypointConfig
    small = SMALL_ENCODER
    model = "nsde_policy.encoders.keypoints.model:KeypointModel"
    features_are_positions = True
