"""ResNet-18 with spatial softmax, as in Diffusion Policy: trained together with the policy."""

from nsde_policy.encoders.identity import IdentityEncoder
from nsde_policy.encoders.registry import register_encoder
from nsde_policy.encoders.resnet.config import ResNetConfig


@register_encoder
class ResNetEncoder(IdentityEncoder):
    """`observation.state`, followed by the features of each camera."""

    name = "resnet"
    config = ResNetConfig
    model = "nsde_policy.encoders.resnet.model:ResNetModel"
