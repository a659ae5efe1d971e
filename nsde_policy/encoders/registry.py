"""Encoders by name: a new one is one new file in this folder, or a package with an entry point.

    @register_encoder
    class MyEncoder(Encoder):
        name = "my_encoder"

Entry points of other packages belong to the group `nsde_policy.encoders`.
"""

from nsde_policy.registry import Registry

from .encoder import Encoder

HELPERS = ("encoder", "encoder_model", "image_norm", "layers", "occlusion", "registry")
"""Modules of this folder that are no encoders."""
ENCODERS: Registry[Encoder] = Registry("encoder", "nsde_policy.encoders", helpers=HELPERS)


def register_encoder(cls: type[Encoder]) -> type[Encoder]:
    """Register an encoder under its `name`; decorates the class."""
    ENCODERS.add(cls.name, cls(), module=cls.__module__)
    return cls


def get_encoder(name: str) -> Encoder:
    """Return an encoder by name."""
    return ENCODERS.get(name)
