"""Keypoints: a few image positions per frame, learned without labels by redrawing the frame from them."""

from nsde_policy.encoders.identity import IdentityEncoder
from nsde_policy.encoders.keypoints.config import KeypointConfig
from nsde_policy.encoders.registry import register_encoder


@register_encoder
class KeypointEncoder(IdentityEncoder):
    """`observation.state`, followed by the keypoints of each camera, x and y in [-1, 1]."""

    name = "keypoints"
    config = KeypointConfig
    model = "nsde_policy.encoders.keypoints.model:KeypointModel"
    features_are_positions = True
