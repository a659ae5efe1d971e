"""ResNet-18 with spatial softmax, as in Diffusion Policy: trained together with the policy."""

from ..identity import IdentityEncoder
from ..registry import register_encoder
from .config import ResNetConfig


@register_encoder
class ResNetEncoder(IdentityEncoder):
    """`observation.state`, followed by the features of each camera."""

    name = "resnet"
    config = ResNetConfig
    model = "nsde_policy.encoders.resnet.model:ResNetModel"
