"""Networks that turn videos into features: I3D, V-JEPA 2, the physics network, or any TorchScript file."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.assets import PHYSICS_WEIGHTS, SHIPPED_FEATURES
from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.errors import CheckpointError, ConfigError, summarize_error
from nsde_policy.eval.video.distances import DistanceName, Features
from nsde_policy.eval.video.i3d import I3D_FRAMES, I3D_SIZE, build_i3d
from nsde_policy.eval.video.physics import (
    FEWEST_CLIP_FRAMES,
    OLD_PHYSICS_TENSOR,
    PHYSICS_SIZE,
    PHYSICS_TENSOR,
    SMALLEST_PHYSICS_SIZE,
    PhysicsNetwork,
    build_physics_network,
)
from nsde_policy.eval.video.vjepa import load_vjepa
from nsde_policy.files import open_regular
from nsde_policy.run_directory import RunDirectory


@dataclass(frozen=True)
class FeatureConfig(BaseConfig):
    """A network that turns clips into features, and what it expects.

    A TorchScript file is called with clips (n, 3, frames, size, size) and must return one row of numbers per
    clip. TorchScript is code: use files from sources that you trust only. Other networks are recognised by
    the names of their tensors, and size and values are what they expect: a `.safetensors` file of I3D or of
    `save_physics_network`, or a folder of V-JEPA 2 in the layout of Hugging Face.
    """

    path: Path
    """TorchScript file, `.safetensors` file, or folder with config.json and model.safetensors; `physics` for
    the physics network of this package."""
    distance: DistanceName = "frechet"
    """Distance that is computed from the features: `frechet` gives FVD on I3D, `jedi` JEDi on V-JEPA."""
    frames: Count = 16
    """Frames per clip; of longer videos the last ones are taken. The physics network takes shorter ones."""
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
        wanted, is_physics = self.config, isinstance(self.module, PhysicsNetwork)
        needed = FEWEST_CLIP_FRAMES if is_physics else wanted.frames
        if videos.shape[1] < needed:
            raise ConfigError(
                f"{wanted.path} needs clips of {needed} frames, the videos have {videos.shape[1]}: "
                "predict more frames or set `frames`"
            )
        if is_physics and min(videos.shape[-2:]) < SMALLEST_PHYSICS_SIZE:
            raise ConfigError(
                f"{wanted.path} needs frames of at least {SMALLEST_PHYSICS_SIZE} × {SMALLEST_PHYSICS_SIZE} "
                f"pixels, got {videos.shape[-2]} × {videos.shape[-1]}"
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
        ConfigError: If the file is missing, damaged, or of another kind than `FeatureConfig` says.
        MissingDependencyError: If a folder of V-JEPA 2 is given, and transformers is not installed.
    """
    if config.path == Path(SHIPPED_FEATURES) and not config.path.exists():
        config = replace(config, path=PHYSICS_WEIGHTS)
    if config.path.is_dir():
        network, size = load_vjepa(config.path, frames=config.frames)
        return FeatureNetwork(network.to(device), replace(config, size=size, values="signed", flags=()))
    open_regular(config.path, error=ConfigError).close()  # the same message for both kinds
    if config.path.suffix == ".safetensors":
        return _load_safetensors(config, device)
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


def _load_safetensors(config: FeatureConfig, device: torch.device | str) -> FeatureNetwork:
    """Load I3D or the physics network, whichever the names of the tensors belong to."""
    path = config.path
    try:
        weights = RunDirectory(path.parent).read_tensors(path, advice="the file is damaged or cut short")
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    if PHYSICS_TENSOR in weights or OLD_PHYSICS_TENSOR in weights:
        wanted = replace(config, size=PHYSICS_SIZE, values="signed", flags=())
        return FeatureNetwork(build_physics_network(weights, path).to(device), wanted)
    if any(name.startswith(("Conv3d_", "Mixed_")) for name in weights):
        if config.frames < I3D_FRAMES:
            raise ConfigError(f"{path} is I3D: need frames >= {I3D_FRAMES}, got {config.frames}")
        wanted = replace(config, size=I3D_SIZE, values="signed", flags=())
        return FeatureNetwork(build_i3d(weights, path).to(device), wanted)
    raise ConfigError(
        f"{path} holds tensors of an unknown network ({', '.join(sorted(weights)[:3]) or 'none'}); expected "
        f"those of I3D (Conv3d_1a_7x7.conv3d.weight, …) or of the physics network ({PHYSICS_TENSOR}, "
        "trunk.0.weight, …): give V-JEPA 2 as its folder with config.json, and other networks as TorchScript"
    )
