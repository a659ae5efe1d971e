"""Simulate videos of colliding shapes, a stand-in for CLEVRER, and write them into a store.

    python -m nsde_video.collisions train.zarr --device cuda                # videos to train on
    python -m nsde_video.collisions test.zarr --videos 512 --seed 1000000    # other videos, to score

3 to 5 discs, squares and triangles of distinct colours move on a dark table of 64 × 64 pixels. They bounce
off its walls and off each other, elastically, as discs whose mass is their radius squared. A quarter of them
start at rest. Between two frames the physics takes 20 steps.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nsde_policy.bounds import Count
from nsde_policy.config import BaseConfig
from nsde_policy.data import DemoWriter

OBJECTS = 5
"""Most objects of a video."""
PALETTE = (
    (230, 60, 60), (60, 180, 75), (70, 110, 240), (245, 215, 60), (240, 130, 40), (170, 70, 200),
    (70, 220, 230), (240, 240, 240),
)  # fmt: skip
"""Colours of the objects."""
TABLE = (24, 26, 32)
"""Colour of the table."""
PHYSICS_STEPS = 20
"""Physics steps per frame."""
RADII, SPEEDS = (4.5, 7.7), (0.8, 2.9)
"""Smallest and largest radius, pixels of a frame of 64, and speed at the start, pixels per frame."""
RESTING = 0.25
"""Fraction of the objects that rest at the start."""
RATE_HZ = 10.0
"""Frames per second that a store states."""
DRAW_BATCH = 2048
"""Frames that are painted at once."""


@dataclass(frozen=True)
class CollisionsConfig(BaseConfig):
    """Size and content of the videos."""

    size: Count = 64
    """Height and width of a frame; sizes and speeds scale with it."""
    frames: Count = 16
    """Frames of each video."""


class Objects(NamedTuple):
    """What the objects of n videos are; rows of absent objects are to be ignored."""

    present: Tensor
    """Which objects exist, (n, 5) bool."""
    radius: Tensor
    """(n, 5), in pixels of a frame of 64."""
    shape: Tensor
    """(n, 5): 0 disc, 1 square, 2 triangle."""
    colour: Tensor
    """(n, 5), index into PALETTE; all different within a video."""
    turn: Tensor
    """Orientation, (n, 5), radians."""


def make_collisions(
    n: int,
    config: CollisionsConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Simulate and draw n videos; the same n, seed and device give the same ones.

    Returns:
        Frames, (n, frames, size, size, 3) uint8.
    """
    generator = torch.Generator(device).manual_seed(seed)
    objects, position, velocity = _draw_starts(n, generator)
    positions = _simulate_motion(objects, position, velocity, config)
    return _draw_frames(objects, positions, config.size)


def _draw_starts(n: int, generator: torch.Generator) -> tuple[Objects, Tensor, Tensor]:
    """Draw objects that do not overlap, and their velocities."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    count = 3 + (uniform(n) * 3).long().clamp(max=2)
    present = torch.arange(OBJECTS, device=generator.device) < count[:, None]
    radius = RADII[0] + (RADII[1] - RADII[0]) * uniform(n, OBJECTS)
    objects = Objects(
        present,
        radius,
        (uniform(n, OBJECTS) * 3).long().clamp(max=2),
        uniform(n, len(PALETTE)).argsort(1)[:, :OBJECTS],
        uniform(n, OBJECTS) * (2 * torch.pi),
    )
    room = radius[..., None] + 0.5
    position = room + (64 - 2 * room) * uniform(n, OBJECTS, 2)
    for _ in range(200):  # draw again what overlaps
        overlaps = (_gaps(objects, position) < 1).any(-1)
        fresh = room + (64 - 2 * room) * uniform(n, OBJECTS, 2)
        position = torch.where(overlaps[..., None], fresh, position)
    speed = SPEEDS[0] + (SPEEDS[1] - SPEEDS[0]) * uniform(n, OBJECTS)
    speed = torch.where(uniform(n, OBJECTS) < RESTING, torch.zeros_like(speed), speed)
    direction = uniform(n, OBJECTS) * (2 * torch.pi)
    velocity = speed[..., None] * torch.stack([direction.cos(), direction.sin()], dim=-1)
    return objects, position, velocity


def _gaps(objects: Objects, position: Tensor) -> Tensor:
    """Return the distance between the edges of each pair, (n, 5, 5); infinite for no pair."""
    between = position[:, :, None] - position[:, None]
    reach = objects.radius[:, :, None] + objects.radius[:, None]
    is_pair = objects.present[:, :, None] & objects.present[:, None]
    is_pair &= ~torch.eye(OBJECTS, dtype=torch.bool, device=position.device)
    return torch.where(is_pair, between.norm(dim=-1) - reach, torch.inf)


def _simulate_motion(
    objects: Objects, position: Tensor, velocity: Tensor, config: CollisionsConfig
) -> Tensor:
    """Move the objects; returns their positions in each frame, (n, frames, 5, 2)."""
    mass, low = objects.radius.square(), objects.radius[..., None]
    positions = []
    for step in range((config.frames - 1) * PHYSICS_STEPS + 1):
        if step % PHYSICS_STEPS == 0:
            positions.append(position)
        position = position + velocity / PHYSICS_STEPS
        outside = (position < low) & (velocity < 0) | (position > 64 - low) & (velocity > 0)
        velocity = torch.where(outside, -velocity, velocity)
        velocity = _bounce(position, velocity, mass, touching=_gaps(objects, position) < 0)
    return torch.stack(positions, dim=1)


def _bounce(position: Tensor, velocity: Tensor, mass: Tensor, *, touching: Tensor) -> Tensor:
    """Exchange the momentum of an elastic impact between touching objects that approach each other."""
    between = position[:, :, None] - position[:, None]
    normal = between / between.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    approach = ((velocity[:, :, None] - velocity[:, None]) * normal).sum(-1).clamp(max=0)
    fraction = 2 * mass[:, None] / (mass[:, :, None] + mass[:, None])
    push = torch.where(touching, -fraction * approach, 0.0)
    bounced: Tensor = velocity + (push[..., None] * normal).sum(2)
    return bounced


def _draw_frames(objects: Objects, position: Tensor, size: int) -> Tensor:
    """Draw the objects at positions (n, frames, 5, 2); returns (n, frames, size, size, 3) uint8."""
    n, frames = position.shape[:2]
    out = torch.empty((n * frames, size, size, 3), dtype=torch.uint8, device=position.device)
    flat = position.flatten(0, 1)
    repeated = Objects(*(part.repeat_interleave(frames, dim=0) for part in objects))
    for start in range(0, len(flat), DRAW_BATCH):
        part = slice(start, start + DRAW_BATCH)
        out[part] = _draw_batch(Objects(*(each[part] for each in repeated)), flat[part], size)
    return out.view(n, frames, size, size, 3)


def _draw_batch(objects: Objects, position: Tensor, size: int) -> Tensor:
    """Draw one frame per row, with edges as soft as a pixel."""
    axis = (torch.arange(size, device=position.device) + 0.5) * (64 / size)
    palette = torch.tensor(PALETTE, dtype=torch.float32, device=position.device)
    picture = torch.tensor(TABLE, dtype=torch.float32, device=position.device).expand(
        len(position), size, size, 3
    )
    for k in range(OBJECTS):
        x = axis[None, None] - position[:, k, 0, None, None]
        y = axis[None, :, None] - position[:, k, 1, None, None]
        cos, sin = (part[:, None, None] for part in (objects.turn[:, k].cos(), objects.turn[:, k].sin()))
        x, y = cos * x + sin * y, cos * y - sin * x
        radius, shape = objects.radius[:, k, None, None], objects.shape[:, k, None, None]
        disc = (x.square() + y.square()).sqrt() - radius
        square = torch.maximum(x.abs(), y.abs()) - 0.8 * radius
        triangle = torch.maximum(y, x.abs() * 0.866 - 0.5 * y) - 0.55 * radius
        edge = torch.where(shape == 0, disc, torch.where(shape == 1, square, triangle))
        cover = (0.5 - edge * (size / 64)).clamp(0, 1) * objects.present[:, k, None, None]
        colour = palette[objects.colour[:, k]][:, None, None]
        picture = torch.lerp(picture, colour, cover[..., None])
    return picture.round().to(torch.uint8)


def main() -> None:
    """Parse the command line and write the videos."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="zarr store to create")
    parser.add_argument("--videos", type=int, default=16_384, help="number of videos")
    parser.add_argument("--frames", type=int, default=16, help="frames of each video")
    parser.add_argument("--size", type=int, default=64, help="height and width of a frame")
    parser.add_argument("--seed", type=int, default=0, help="seed of all videos")
    parser.add_argument("--device", default="cpu", help="where to simulate; another one gives other videos")
    args = parser.parse_args()
    config = CollisionsConfig(size=args.size, frames=args.frames)
    videos = make_collisions(args.videos, config, seed=args.seed, device=args.device)
    with DemoWriter(args.out, rate_hz=RATE_HZ) as writer:
        for video in videos:
            writer.append(None, {"img": video.cpu().numpy()})
    print(f"{args.out} holds {len(videos)} videos")


if __name__ == "__main__":
    main()
