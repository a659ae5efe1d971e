"""ResNet-18 (He et al. 2016) with GroupNorm and spatial softmax, as in Diffusion Policy (Chi et al. 2023).

Weights start at random, and the policy's loss trains them. Frames are cropped at random places, each
independently, without other augmentation; a policy sees the centre.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsde_policy.core.networks import weights_from
from nsde_policy.core.spec import CameraSpec

from ..encoder_model import EncoderModel, to_unit_rgb
from ..image_norm import ImageNorm
from ..layers import average_maps, locate_peaks
from .config import CHANNELS_PER_GROUP, ResNetConfig


def _normalize(channels: int) -> ImageNorm:
    return ImageNorm(channels // CHANNELS_PER_GROUP, channels)


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions, added to their input; the first may halve the size."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            _normalize(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            _normalize(outputs),
        )
        same = inputs == outputs and stride == 1
        self.skip: nn.Module = nn.Identity()
        if not same:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _normalize(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return F.relu(self.body(x) + self.skip(x))


class ResNet18(nn.Sequential):
    """The convolutions of ResNet-18: (n, 3, h, w) to (n, 8·width, h / 32, w / 32)."""

    def __init__(self, width: int) -> None:
        stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), _normalize(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        sizes = [(width, width, 1), *((width << i, width << i + 1, 2) for i in range(3))]
        blocks = [
            block
            for inputs, outputs, stride in sizes
            for block in (
                BasicBlock(inputs, outputs, stride=stride),
                BasicBlock(outputs, outputs, stride=1),
            )
        ]
        super().__init__(*stem, *blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class CameraNetwork(nn.Module):
    """ResNet-18, spatial softmax and a linear layer, for one camera."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.trunk = ResNet18(config.width)
        self.maps = nn.Conv2d(8 * config.width, config.keypoints, 1)
        self.head = nn.Linear(2 * config.keypoints, config.features)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Map frames (n, size, size, 3) uint8 to features (n, features) and the means of the last maps."""
        maps = self.trunk(to_unit_rgb(frames))
        with torch.autocast(maps.device.type, enabled=False):  # positions need more than bf16
            features = F.relu(self.head(locate_peaks(self.maps(maps.float())).flatten(1)))
            return features, average_maps(maps.float())


class ResNetModel(EncoderModel):
    """One network per camera; their features are concatenated."""

    def __init__(
        self,
        config: ResNetConfig,
        cameras: Sequence[CameraSpec],
        *,
        plain_dim: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.config, self.size = config, config.size
        self.feature_dim = config.features * len(cameras)
        with weights_from(generator):
            self.cameras = nn.ModuleList(CameraNetwork(config) for _ in cameras)

    def summarize(self, values: Tensor, *frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of all cameras, and the means of the last maps; crops or takes the centre."""
        crop, start = self.config.crop, (self.size - self.config.crop) // 2
        centre = slice(start, start + crop)
        outputs = [
            camera(frame if frame.shape[1] == crop else frame[:, centre, centre])
            for camera, frame in zip(self.cameras, frames, strict=True)
        ]
        features, summaries = zip(*outputs, strict=True)
        return torch.cat(features, dim=1), torch.cat(summaries, dim=1)

    def augment(self, frames: Tensor, generator: torch.Generator) -> Tensor:
        """Crop each frame at a random place, (n, crop, crop, 3)."""
        n, crop, device = len(frames), self.config.crop, frames.device
        places = self.size - crop + 1
        start = torch.randint(places, (n, 2), device=device, generator=generator)
        pixel = torch.arange(crop, device=device)
        row, column = start[:, :1] + pixel, start[:, 1:] + pixel
        index = torch.arange(n, device=device)[:, None, None]
        return frames[index, row[:, :, None], column[:, None, :]]
