"""ResNet-18 with spatial softmax, as in Diffusion Policy: trained together with the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsde_policy.encoders.identity import IdentityEncoder
from nsde_policy.encoders.registry import register_encoder
from nsde_policy.encoders.resnet.config import ResNetConfig

if TYPE_CHECKING:
    from nsde_policy.encoders.base_model import EncoderModel


@register_encoder
class ResNetEncoder(IdentityEncoder):
    """`observation.state`, followed by the features of each camera."""

    name = "resnet"
    config = ResNetConfig

    def model_class(self) -> type[EncoderModel]:
        """Return the class of the network."""
        from nsde_policy.encoders.resnet.model import ResNetModel

        return ResNetModel
