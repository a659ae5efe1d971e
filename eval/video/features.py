"""Networks whose features of clips give a Fréchet distance: I3D for FVD, or the physics network."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.assets import PHYSICS_WEIGHTS, SHIPPED_FEATURES
from nsde_policy.errors import CheckpointError, ConfigError
from nsde_policy.eval.video.distances import Features
from nsde_policy.eval.video.i3d import I3D_FRAMES, I3D_SIZE, build_i3d
from nsde_policy.eval.video.physics import (
    FEWEST_CLIP_FRAMES,
    PHYSICS_SIZE,
    PHYSICS_TENSOR,
    SMALLEST_PHYSICS_SIZE,
    build_physics_network,
)
from nsde_policy.run_directory import RunDirectory

CLIP_FRAMES = 16
"""Most frames of a clip; of longer videos the last ones are taken."""


@dataclass(frozen=True)
class FeatureNetwork:
    """A network that maps clips (n, 3, frames, size, size) to one row of features each."""

    module: nn.Module
    path: Path
    """File that it was loaded from."""
    size: int
    """Height and width that frames are resized to."""
    fewest_frames: int
    """Fewest frames of a clip."""
    smallest_size: int = 1
    """Smallest height and width before resizing."""

    @torch.no_grad()
    def compute(self, videos: Tensor, *, batch_size: int = 16) -> Features:
        """Return the features of videos (n, length, 3, size, size) with values from -1 to 1, (n, d).

        Raises:
            ConfigError: If the videos are too short, or their frames too small.
        """
        length, _, *sides = videos.shape[1:]
        if length < self.fewest_frames:
            raise ConfigError(
                f"{self.path} needs clips of {self.fewest_frames} frames, the videos have {length}: predict "
                "more frames"
            )
        if min(sides) < self.smallest_size:
            raise ConfigError(
                f"{self.path} needs frames of at least {self.smallest_size} × {self.smallest_size} pixels, "
                f"got {sides[0]} × {sides[1]}"
            )
        clips = torch.split(videos[:, -CLIP_FRAMES:], batch_size)
        with torch.backends.cudnn.flags(allow_tf32=False):
            return np.asarray(torch.cat([self._run(clip) for clip in clips]).double().cpu())

    def _run(self, clips: Tensor) -> Tensor:
        pixels = clips.to(next(self.module.parameters()).device, torch.float32)
        if pixels.shape[-2:] != (self.size, self.size):
            flat = functional.interpolate(
                pixels.flatten(0, 1), (self.size, self.size), mode="bilinear", antialias=True
            )
            pixels = flat.reshape(*pixels.shape[:3], self.size, self.size)
        features: Tensor = self.module(pixels.transpose(1, 2).contiguous())
        return features


def load_features(path: Path, *, device: torch.device | str = "cpu") -> FeatureNetwork:
    """Load a network from a .safetensors file, or the physics network of this package for `physics`.

    Raises:
        ConfigError: If the file is missing, damaged, or holds another network.
    """
    if path == Path(SHIPPED_FEATURES) and not path.exists():
        path = PHYSICS_WEIGHTS
    try:
        weights = RunDirectory(path.parent).read_tensors(path, advice="expected a .safetensors file")
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    network = _build_network(weights, path)
    network.module.to(device)
    return network


def _build_network(weights: Mapping[str, Tensor], path: Path) -> FeatureNetwork:
    """Build I3D or the physics network, whichever the names of the tensors belong to."""
    if PHYSICS_TENSOR in weights:
        physics = build_physics_network(weights, path)
        return FeatureNetwork(physics, path, PHYSICS_SIZE, FEWEST_CLIP_FRAMES, SMALLEST_PHYSICS_SIZE)
    if any(name.startswith(("Conv3d_", "Mixed_")) for name in weights):
        return FeatureNetwork(build_i3d(weights, path), path, I3D_SIZE, I3D_FRAMES)
    raise ConfigError(
        f"{path} holds tensors of an unknown network ({', '.join(sorted(weights)[:3]) or 'none'}); expected "
        f"those of I3D (Conv3d_1a_7x7.conv3d.weight, …) or of the physics network ({PHYSICS_TENSOR}, …)"
    )
