"""Tests of the ResNet encoder: its size, its normalisation and its crops."""

import pytest
import torch

from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.resnet.config import ResNetConfig
from nsde_policy.encoders.resnet.model import ResNet18, ResNetModel
from nsde_policy.errors import ConfigError

CAMERAS = [CameraSpec("observation.images.top", 40, 40), CameraSpec("observation.images.wrist", 40, 40)]


def build(**changes: int) -> ResNetModel:
    sizes = {"size": 40, "crop": 36, "width": 16, "keypoints": 3, "features": 5, **changes}
    return ResNetModel(
        ResNetConfig(**sizes), CAMERAS, plain_dim=2, generator=torch.Generator().manual_seed(0)
    )


def draw_frames(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (n, 40, 40, 3), dtype=torch.uint8, generator=generator)


def test_trunk_is_resnet_18():
    with torch.device("meta"):
        trunk = ResNet18(64)
        assert trunk(torch.empty(2, 3, 84, 84)).shape == (2, 512, 3, 3)
    assert sum(p.numel() for p in trunk.parameters()) == 11_176_512  # torchvision's, without its last layer
    assert [m.num_groups for m in trunk.modules() if isinstance(m, torch.nn.GroupNorm)][::5] == [4, 8, 16, 32]


def test_training_crops_are_parts_of_their_frames_and_differ():
    model, frames = build(), draw_frames(20)
    crops = model.augment(frames, torch.Generator().manual_seed(2))
    places = []
    for frame, crop in zip(frames, crops, strict=True):
        found = [(y, x) for y in range(5) for x in range(5) if frame[y : y + 36, x : x + 36].equal(crop)]
        places += found
    assert len(places) == 20
    assert {y for y, _ in places} == {x for _, x in places} == {*range(5)}


def test_policy_sees_the_centre_of_every_camera():
    model, frames = build().eval(), draw_frames(2)
    centre = frames[:, 2:38, 2:38]
    values = torch.zeros(2, 2)
    with torch.no_grad():
        features = model(values, frames, frames.flip(1))
        torch.testing.assert_close(features, model(values, centre, centre.flip(1)))
        assert (features[:, 5:] - model(values, frames, frames)[:, 5:]).abs().max() > 0
    assert features.shape == (2, model.feature_dim) == (2, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"crop": 41}, "crop <= size"), ({"width": 24}, "multiple of 16"), ({"crop": 20}, "crop >= 33")],
)
def test_impossible_sizes_are_refused(changes: dict[str, int], message: str):
    with pytest.raises(ConfigError, match=message):
        build(**changes)
