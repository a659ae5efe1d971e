"""Networks that turn videos into features: TorchScript files (I3D, V-JEPA) or the physics network."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError, summarize_error
from nsde_policy.eval.video.distances import DistanceName, Features
from nsde_policy.eval.video.physics import PhysicsNetwork, load_physics_network
from nsde_policy.files import open_regular


@dataclass(frozen=True)
class FeatureConfig(BaseConfig):
    """A network that turns clips into features, and what it expects.

    A TorchScript file is called with clips (n, 3, frames, size, size) and must return one row of numbers per
    clip. TorchScript is code: use files from sources that you trust only. For a `.safetensors` file, which
    `save_physics_network` writes, the file says what the network expects.
    """

    path: Path
    """TorchScript file, or `.safetensors` file of the physics network."""
    distance: DistanceName = "frechet"
    """Distance that is computed from the features: `frechet` gives FVD on I3D, `jedi` JEDi on V-JEPA."""
    frames: Count = 16
    """Frames per clip; of longer videos the last ones are taken."""
    size: Count = 224
    """Height and width to which frames are resized."""
    values: Literal["signed", "unit"] = "signed"
    """Range of the pixels: `signed` from -1 to 1, `unit` from 0 to 1."""
    flags: tuple[str, ...] = ()
    """Arguments of the TorchScript network that are set to true, such as `return_features`."""


@dataclass(frozen=True)
class FeatureNetwork:
    """A loaded network with the settings of its input."""

    module: nn.Module
    config: FeatureConfig

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return next(iter([*self.module.parameters(), *self.module.buffers()]), torch.empty(0)).device

    @torch.no_grad()
    def compute(self, videos: Tensor, *, batch_size: int = 16) -> Features:
        """Return the features of videos (n, length, 3, size, size) with values from -1 to 1, (n, d).

        Raises:
            ConfigError: If the videos are too short, the network fails, or returns something else.
        """
        wanted = self.config
        if videos.shape[1] < wanted.frames:
            raise ConfigError(
                f"{wanted.path} needs clips of {wanted.frames} frames, the videos have {videos.shape[1]}: "
                "predict more frames or set `frames`"
            )
        clips = torch.split(videos[:, -wanted.frames :], batch_size)
        with torch.backends.cudnn.flags(allow_tf32=False):
            return np.asarray(torch.cat([self._run(clip) for clip in clips]).double().cpu())

    def _run(self, clips: Tensor) -> Tensor:
        wanted = self.config
        pixels = clips.to(self.device, torch.float32)
        if pixels.shape[-1] != wanted.size or pixels.shape[-2] != wanted.size:
            flat = functional.interpolate(
                pixels.flatten(0, 1), (wanted.size, wanted.size), mode="bilinear", antialias=True
            )
            pixels = flat.reshape(*pixels.shape[:3], wanted.size, wanted.size)
        if wanted.values == "unit":
            pixels = (pixels + 1) / 2
        try:
            found = self.module(pixels.transpose(1, 2).contiguous(), **dict.fromkeys(wanted.flags, True))
        except (RuntimeError, TypeError) as error:
            raise ConfigError(
                f"{wanted.path} failed on {len(clips)} clips of {wanted.frames} frames of {wanted.size} × "
                f"{wanted.size}: {summarize_error(error)}"
            ) from error
        if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != len(clips):
            shape = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ConfigError(f"{wanted.path} returned {shape}, expected one row of features per clip")
        return found.flatten(1)


def load_features(config: FeatureConfig, *, device: torch.device | str = "cpu") -> FeatureNetwork:
    """Load a network that turns videos into features.

    Raises:
        ConfigError: If the file is missing, damaged, or neither TorchScript nor a physics network.
    """
    open_regular(config.path, error=ConfigError).close()  # the same message for both kinds
    if config.path.suffix == ".safetensors":
        network = load_physics_network(config.path).to(device)
        return wrap_physics_network(network, path=config.path, distance=config.distance)
    try:
        with open_regular(config.path, error=ConfigError) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript, as which I3D is published
            module = torch.jit.load(file, map_location=device)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{config.path} is not a TorchScript file (torch.jit.save): {summarize_error(error)}"
        ) from error
    return FeatureNetwork(module.eval(), config)


def wrap_physics_network(
    network: PhysicsNetwork, *, path: Path = Path("physics"), distance: DistanceName = "frechet"
) -> FeatureNetwork:
    """Use a physics network in memory for features."""
    sizes = network.config
    return FeatureNetwork(network, FeatureConfig(path, distance, sizes.frames, sizes.size))
