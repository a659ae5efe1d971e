"""Keypoints from a pretrained network of the library timm, with weights that the user has."""

from ..identity import IdentityEncoder
from ..registry import register_encoder
from .config import SMALL_ENCODER, TimmConfig


@register_encoder
class TimmEncoder(IdentityEncoder):
    """`observation.state`, followed by the keypoints of each camera, x and y in [-1, 1]."""

    name = "timm"
    config = TimmConfig
    small = SMALL_ENCODER
    model = "nsde_policy.encoders.timm.model:TimmModel"
    features_are_positions = True
