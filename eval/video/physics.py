"""Features of videos of `collisions`: the last hidden layer of a small network that reads off physical facts.

FVD and JEDi need networks with pretrained weights. For `collisions` the facts behind a clip are known, so a
network that is trained to find them in a minute has features that tell whether a clip is physically right.
They hardly react to pixel noise: give PSNR and SSIM as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig, TrainConfig, require
from nsde_policy.core.networks import weights_from
from nsde_policy.core.targets import TensorRows
from nsde_policy.errors import ConfigError, summarize_error
from nsde_policy.files import replace_file
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.training.loop import FitRecord, fit
from nsde_policy.video.collisions import PALETTE, CollisionsConfig, CollisionVideos, make_collisions
from nsde_policy.video.spaces import to_unit

FEATURE_SIZE = 64
"""Number of features of a clip."""
SHAPES = 3
"""Disc, square and triangle."""
PHYSICS_LAYOUT = "layout"
"""Name of the tensor with the sizes of the network, by which its files are recognised."""
CONTACT_SCALE = 4.0
"""Contacts of a clip are divided by this."""


class PhysicsFacts(NamedTuple):
    """Facts of each clip, by colour of the palette; those of colours that are absent are to be ignored."""

    present: Tensor
    """Which colours there are, (n, 8), 0 or 1."""
    shape: Tensor
    """Shape of the object of each colour, (n, 8), 0 to 2."""
    motion: Tensor
    """First and last position and last velocity, (n, 8, 6), scaled to about -1 to 1."""
    contacts: Tensor
    """Number of pairs and frames in which objects touched, scaled, (n, 1)."""


@dataclass(frozen=True)
class PhysicsClips(TensorRows):
    """Training data of the physics network; the facts as in `PhysicsFacts`."""

    frames: Tensor
    """(n, frames, size, size, 3) uint8."""
    present: Tensor
    shape: Tensor
    motion: Tensor
    contacts: Tensor

    @classmethod
    def of(cls, videos: CollisionVideos) -> "PhysicsClips":
        """Write down the facts of videos."""
        objects, motion = videos.objects, videos.motion
        first, last = motion.position[:, 0] / 32 - 1, motion.position[:, -1] / 32 - 1
        moves = torch.cat([first, last, motion.velocity[:, -1] / 3], dim=-1)
        contacts = motion.contact[:, 1:].sum((1, 2, 3))[:, None] / (2 * CONTACT_SCALE)
        n, device = len(videos.frames), videos.frames.device
        present = torch.zeros(n, len(PALETTE), device=device).scatter_(
            1, objects.colour, objects.present.float()
        )
        shape = torch.zeros(n, len(PALETTE), dtype=torch.long, device=device)
        shape = shape.scatter_(1, objects.colour, objects.shape)
        table = torch.zeros(n, len(PALETTE), moves.shape[-1], device=device)
        table = table.scatter_(1, objects.colour[..., None].expand_as(moves), moves)
        return cls(videos.frames, present, shape, table, contacts)


@dataclass(frozen=True)
class PhysicsConfig(BaseConfig):
    """Size of the physics network and its clips."""

    frames: Count = 16
    """Frames per clip, a multiple of 4."""
    size: Count = 64
    """Height and width of a frame, a multiple of 16."""
    channels: tuple[int, int, int, int] = (32, 64, 96, 128)
    """Channels of its four convolutions, multiples of 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, self.frames % 4 == 0, f"frames must be a multiple of 4, got {self.frames}")
        require(self, self.size % 16 == 0, f"size must be a multiple of 16, got {self.size}")
        require(self, all(c > 0 and c % 8 == 0 for c in self.channels), f"invalid channels {self.channels}")


class PhysicsNetwork(TrainableModel[PhysicsClips]):
    """Finds the facts of clips (n, 3, frames, size, size) with values from -1 to 1; returns its features."""

    layout: Tensor

    def __init__(self, config: PhysicsConfig, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        strides = ((1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2))
        layers: list[nn.Module] = []
        with weights_from(generator):
            for inputs, outputs, stride in zip((3, *config.channels), config.channels, strides, strict=False):
                layers += [nn.Conv3d(inputs, outputs, 3, stride, 1), nn.GroupNorm(8, outputs), nn.GELU()]
            flat = config.channels[-1] * (config.frames // 4) * (config.size // 16) ** 2
            self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, FEATURE_SIZE), nn.GELU())
            self.facts = nn.Linear(FEATURE_SIZE, len(PALETTE) * (1 + SHAPES + 6) + 1)
        self.register_buffer(PHYSICS_LAYOUT, torch.tensor([config.frames, config.size, *config.channels]))

    def forward(self, clips: Tensor) -> Tensor:
        """Return the features of clips, (n, 64)."""
        features: Tensor = self.trunk(clips)
        return features

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(("present", "shape", "motion", "contacts"), tuple(self.parameters())),)

    def read_facts(self, features: Tensor) -> PhysicsFacts:
        """Return the facts of features: logits of presence (n, 8) and shape (n, 8, 3), and numbers."""
        sizes = [len(PALETTE), len(PALETTE) * SHAPES, len(PALETTE) * 6, 1]
        present, shape, motion, contacts = torch.split(self.facts(features).float(), sizes, dim=1)
        n = len(features)
        return PhysicsFacts(
            present, shape.reshape(n, len(PALETTE), SHAPES), motion.reshape(n, len(PALETTE), 6), contacts
        )

    def loss(self, batch: PhysicsClips, generator: torch.Generator) -> LossParts:
        """Return cross-entropies of presence and shape, and square errors of motion and contacts."""
        found = self.read_facts(self(to_unit(batch.frames).transpose(1, 2)))
        share = batch.present / batch.present.sum().clamp(min=1)
        shape = functional.cross_entropy(found.shape.transpose(1, 2), batch.shape, reduction="none")
        return LossParts(
            {
                "present": functional.binary_cross_entropy_with_logits(found.present, batch.present),
                "shape": 0.3 * (shape * share).sum(),
                "motion": 10 * ((found.motion - batch.motion).square().mean(-1) * share).sum(),
                "contacts": 0.3 * (found.contacts - batch.contacts).square().mean(),
            }
        )


def train_physics_features(
    device: torch.device | str,
    seed: int,
    steps: int,
    *,
    config: PhysicsConfig | None = None,
    videos: int = 16_384,
    batch_size: int = 128,
) -> tuple[PhysicsNetwork, FitRecord]:
    """Train the physics network on videos of `collisions`; about a minute for 3000 steps on a GPU.

    Args:
        device: Where to simulate and train.
        seed: Seed of videos, weights and batches.
        steps: Optimiser steps.
        config: Size of network and clips; None for the defaults.
        videos: Number of training videos; they stay on the device, 200 kB each.
        batch_size: Clips per step.
    """
    config = config or PhysicsConfig()
    made = make_collisions(
        videos, CollisionsConfig(size=config.size, frames=config.frames), seed=seed, device=device
    )
    network = PhysicsNetwork(config, generator=torch.Generator().manual_seed(seed)).to(device)
    settings = TrainConfig(
        steps=steps, batch_size=batch_size, learning_rate=1e-3, weight_decay=0.01, precision="bf16"
    )
    record = fit(network, PhysicsClips.of(made), settings, seed=seed)
    return network, record


def save_physics_network(network: PhysicsNetwork, path: Path) -> None:
    """Write the weights as a safetensors file, atomically."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    replace_file(path, save(weights))


def build_physics_network(weights: Mapping[str, Tensor], path: Path) -> PhysicsNetwork:
    """Build the network from the tensors that `save_physics_network` wrote to the file `path`.

    Raises:
        ConfigError: If tensors are missing or do not fit.
    """
    try:
        frames, size, *channels = weights[PHYSICS_LAYOUT].tolist()
        first, second, third, fourth = channels
        config = PhysicsConfig(frames, size, (first, second, third, fourth))
        with torch.device("meta"):
            network = PhysicsNetwork(config, generator=torch.Generator())
        network.load_state_dict(weights, assign=True)
    except (ConfigError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"{path} is not a file of the physics network (save_physics_network): {summarize_error(error)}"
        ) from error
    return network.eval()
