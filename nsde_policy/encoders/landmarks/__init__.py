"""Landmarks: places of small things, learned from what differs between first frames."""

from ..identity import IdentityEncoder
from ..registry import register_encoder
from .config import SMALL_ENCODER, LandmarkConfig


@register_encoder
class LandmarkEncoder(IdentityEncoder):
    """`observation.state`, followed by the landmarks of each camera, x and y in [-1, 1]."""

    name = "landmarks"
    config = LandmarkConfig
    small = SMALL_ENCODER
    model = "nsde_policy.encoders.landmarks.model:LandmarkModel"
    features_are_positions = True
