"""Features of videos of `collisions`: where a small network sees the objects, how they move and touch.

FVD needs a network with pretrained weights. For `collisions` the facts behind a frame are known, so a network
with 20,000 weights was trained to find them in each frame by itself (benchmarks/video_features.py): which
colours there are, where, how large, and of which shape. The features of a clip are computed from these.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsde_policy.core.networks import weights_from
from nsde_policy.errors import ConfigError, summarize_error
from nsde_policy.video.collisions import PALETTE

PHYSICS_SIZE = 64
"""Height and width of the frames that the network sees; others are resized."""
SMALLEST_PHYSICS_SIZE = 32
"""Smallest height and width before resizing."""
FEWEST_CLIP_FRAMES = 3
"""Fewest frames of a clip, for velocities and contacts."""
PHYSICS_TENSOR = "heat.weight"
"""Name of a tensor by which files of the network are recognised."""
SHAPES = 3
"""Disc, square and triangle."""
POSITION_UNIT, VELOCITY_UNIT, SHAPE_UNIT, CONTACT_UNIT = 12.0, 1.0, 0.4, 1.0
"""Pixels, pixels per frame, share, and number: about the standard deviations of the features."""
DEEPEST_PX, TOUCHING_PX, REBOUND_PX = -3.0, 1.5, 0.8
"""Gaps between which objects touch, and how much farther apart than expected they are after a contact; chosen
on simulated positions of tuning videos."""


class FoundObjects(NamedTuple):
    """What frames show, by colour of the palette; lengths in pixels of a frame of 64."""

    present: Tensor
    """Logit of whether the colour is there, (..., 8)."""
    position: Tensor
    """x and y of the middle of the object, (..., 8, 2)."""
    radius: Tensor
    """Radius of the disc as which the object bounces, (..., 8)."""
    shape: Tensor
    """Logits of disc, square and triangle, (..., 8, 3)."""


class PhysicsNetwork(nn.Module):
    """Finds objects in frames by heat maps; its output for clips are their features."""

    def __init__(self, *, generator: torch.Generator, channels: int = 16) -> None:
        super().__init__()
        wide = 2 * channels
        with weights_from(generator):
            self.trunk = nn.Sequential(
                nn.Conv2d(3, channels, 5, 2, 2), nn.GELU(),
                nn.Conv2d(channels, channels, 3, 1, 1), nn.GELU(),
                nn.Conv2d(channels, channels, 3, 1, 1), nn.GELU(),
            )  # fmt: skip
            self.heat = nn.Conv2d(channels, len(PALETTE), 1)
            self.surroundings = nn.Sequential(
                nn.Conv2d(channels, wide, 3, 2, 1), nn.GELU(), nn.Conv2d(wide, wide, 3, 1, 1), nn.GELU()
            )  # sees 25 × 25 pixels, more than an object
            self.form = nn.Linear(wide, 1 + SHAPES)
            self.presence = nn.Parameter(torch.zeros(len(PALETTE)))

    def find(self, frames: Tensor) -> FoundObjects:
        """Find the objects in frames (n, 3, 64, 64) with values from -1 to 1."""
        maps = self.trunk(frames)
        heat = 3 * self.heat(maps).float()
        share = heat.flatten(2).softmax(-1).view_as(heat)
        axis = (torch.arange(heat.shape[-1], device=heat.device) + 0.5) * 2
        position = torch.stack([(share.sum(dim) * axis).sum(-1) for dim in (2, 3)], dim=-1)
        present = heat.flatten(2).logsumexp(-1) - math.log(heat[0, 0].numel()) + self.presence
        places = position.detach()[:, :, None] / (PHYSICS_SIZE / 2) - 1  # forms do not move positions
        around = functional.grid_sample(self.surroundings(maps).float(), places, align_corners=False)
        form = self.form(around[..., 0].transpose(1, 2))
        return FoundObjects(present, position, 6 + form[..., 0], form[..., 1:])

    def forward(self, clips: Tensor) -> Tensor:
        """Return the features of clips (n, 3, frames, 64, 64), (n, 80)."""
        n, _, frames = clips.shape[:3]
        found = self.find(clips.transpose(1, 2).flatten(0, 1))
        return compute_physics_features(
            FoundObjects(*(part.reshape(n, frames, *part.shape[1:]) for part in found))
        )


def compute_physics_features(found: FoundObjects) -> Tensor:
    """Return the features of clips from what each frame shows, (n, frames, 8, …); (n, 80).

    For each of the 8 colours: first and last position relative to the middle of the frame, mean velocity over
    the last two steps, the shares of the three shapes in the last frame, which add up to the presence of the
    colour, and the number of contacts. All are 0 for a colour that is absent, and in units of about their
    standard deviation.
    """
    present, position = found.present.sigmoid(), found.position
    middle = (position - PHYSICS_SIZE / 2) * present[..., None]
    velocity = (position[:, -1] - position[:, -3]) / 2 * present[:, -1, :, None]
    shape = found.shape[:, -1].softmax(-1) * present[:, -1, :, None]
    columns = (
        middle[:, 0] / POSITION_UNIT,
        middle[:, -1] / POSITION_UNIT,
        velocity / VELOCITY_UNIT,
        shape / SHAPE_UNIT,
        count_contacts(found)[..., None] / CONTACT_UNIT,
    )
    return torch.cat(columns, dim=-1).flatten(1)


def count_contacts(found: FoundObjects) -> Tensor:
    """Return a smooth number of contacts of each colour in clips, (n, 8).

    A contact of two objects is a step before or after which their gap is small, and after which they are
    farther apart than if both had moved on as before: shapes that pass through each other have none.
    """
    between = found.position[:, :, :, None] - found.position[:, :, None]
    gap = between.norm(dim=-1) - (found.radius[..., None] + found.radius[:, :, None])
    onward = (2 * between[:, 1:-1] - between[:, :-2]).norm(dim=-1)
    rebound = between[:, 2:].norm(dim=-1) - onward
    smaller = torch.minimum(gap[:, 1:-1], gap[:, 2:])
    touch = torch.sigmoid(TOUCHING_PX - smaller) * torch.sigmoid(smaller - DEEPEST_PX)
    touch = touch * torch.sigmoid((rebound - REBOUND_PX) / 0.2)
    present = found.present.sigmoid()[:, 2:]
    is_pair = 1 - torch.eye(len(PALETTE), device=gap.device)
    return (touch * present[..., None] * present[:, :, None] * is_pair).sum((1, 3))


def build_physics_network(weights: Mapping[str, Tensor], path: Path) -> PhysicsNetwork:
    """Build the network from the tensors of the file `path`, which benchmarks/video_features.py writes.

    Raises:
        ConfigError: If tensors are missing or do not fit.
    """
    try:
        with torch.device("meta"):
            network = PhysicsNetwork(generator=torch.Generator())
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ConfigError(f"{path} is not a file of the physics network: {summarize_error(error)}") from error
    return network.eval()
