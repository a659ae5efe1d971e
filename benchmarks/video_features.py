"""Train the physics network of `nsde_policy.eval.video`, and check what it finds and its distance notices.

    python benchmarks/video_features.py --json benchmarks/results/video_features.json
    python benchmarks/video_features.py --train nsde_policy/assets/physics.safetensors

The first command measures the network of the package on test videos of `collisions`: errors in single frames,
and the Fréchet distance of true videos that were spoilt in known ways, with the distance between two halves
of the true videos as floor. The second one trained that network, and measures it as well.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from nsde_policy.assets import PHYSICS_WEIGHTS
from nsde_policy.config import TrainConfig
from nsde_policy.core.targets import TensorRows
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.video.distances import frechet_distance
from nsde_policy.eval.video.features import FeatureNetwork, load_features
from nsde_policy.eval.video.physics import PHYSICS_SIZE, FoundObjects, PhysicsNetwork, count_contacts
from nsde_policy.files import replace_file
from nsde_policy.methods.base import LossParts, Stage, TrainableModel
from nsde_policy.training.loop import FitRecord, fit
from nsde_policy.video.collisions import (
    COLLISION_SEEDS,
    PALETTE,
    CollisionsConfig,
    CollisionVideos,
    Objects,
    draw_frames,
    make_collisions,
    simulate_collisions,
    simulate_motion,
)
from nsde_policy.video.pixels import to_unit

GIVEN = 4
"""Frames of a clip that stay as they are, the context of a prediction."""


@dataclass(frozen=True)
class PhysicsFrames(TensorRows):
    """Training data: frames and what is true about each colour; absent colours are to be ignored."""

    frames: Tensor
    """Single frames, (n, 64, 64, 3) uint8."""
    present: Tensor
    """Which colours there are, 0 or 1, (n, 8)."""
    position: Tensor
    radius: Tensor
    shape: Tensor
    """Shape of each colour, 0 to 2, (n, 8)."""

    @classmethod
    def of(cls, objects: Objects, position: Tensor) -> "PhysicsFrames":
        """Draw frames of objects at positions (n, frames, 5, 2)."""
        frames = draw_frames(objects, position, PHYSICS_SIZE).flatten(0, 1)
        repeated = Objects(*(part.repeat_interleave(position.shape[1], dim=0) for part in objects))
        rows = torch.arange(len(frames), device=frames.device)[:, None]

        def by_colour(values: Tensor) -> Tensor:
            table = values.new_zeros(len(values), len(PALETTE), *values.shape[2:])
            table[rows, repeated.colour] = values
            return table

        columns = (repeated.present.float(), position.flatten(0, 1), repeated.radius, repeated.shape)
        return cls(frames, *map(by_colour, columns))


class PhysicsTraining(TrainableModel[PhysicsFrames]):
    """The training of a physics network."""

    def __init__(self, network: PhysicsNetwork) -> None:
        super().__init__()
        self.network = network

    def stages(self) -> tuple[Stage, ...]:
        """Train everything at once."""
        return (Stage(("present", "position", "radius", "shape"), tuple(self.parameters())),)

    def loss(self, batch: PhysicsFrames, generator: torch.Generator) -> LossParts:
        """Return the losses of frames with noise, about half of them with the details of 32 × 32 pixels."""
        frames = to_unit(batch.frames)
        shape = (len(frames), 1, 1, 1)
        coarse = functional.interpolate(
            functional.avg_pool2d(frames, 2), frames.shape[-2:], mode="bilinear", antialias=True
        )
        is_coarse, strength = torch.rand((2, *shape), generator=generator, device=frames.device)
        frames = torch.where(is_coarse < 0.5, coarse, frames)
        noise = torch.randn(frames.shape, generator=generator, device=frames.device)
        found = self.network.find(frames + 0.1 * strength * noise)
        share = batch.present / batch.present.sum().clamp(min=1)
        entropy = functional.cross_entropy(found.shape.transpose(1, 2), batch.shape, reduction="none")
        return LossParts(
            {
                "present": 0.3 * functional.binary_cross_entropy_with_logits(found.present, batch.present),
                "position": (((found.position - batch.position) / 4).square().sum(-1) * share).sum(),
                "radius": 0.3 * ((found.radius - batch.radius).square() * share).sum(),
                "shape": 0.3 * (entropy * share).sum(),
            }
        )


def train_physics_network(
    device: torch.device | str, seed: int, steps: int, *, videos: int = 2048, batch_size: int = 32
) -> tuple[PhysicsNetwork, FitRecord]:
    """Train the physics network on every fifth frame of videos of `collisions`.

    Args:
        device: Where to simulate and train.
        seed: Seed of videos, weights and batches.
        steps: Optimiser steps.
        videos: Number of training videos; their frames stay on the device, 50 kB each.
        batch_size: Frames per step.
    """
    objects, motion = simulate_collisions(videos, CollisionsConfig(frames=16), seed=seed, device=device)
    network = PhysicsNetwork(generator=torch.Generator().manual_seed(seed)).to(device)
    settings = TrainConfig(
        steps=steps, batch_size=batch_size, learning_rate=6e-3, warmup=0.1, weight_decay=0.01, ema=0.99
    )
    frames = PhysicsFrames.of(objects, motion.position[:, ::5])
    return network, fit(PhysicsTraining(network), frames, settings, seed=seed)


def save_physics_network(network: PhysicsNetwork, path: Path) -> None:
    """Write the weights as a safetensors file, atomically."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    replace_file(path, save(weights))


def add_noise(frames: Tensor, std: float, seed: int = 0) -> Tensor:
    generator = torch.Generator(frames.device).manual_seed(seed)
    drawn = torch.randn(frames.shape, generator=generator, device=frames.device)
    return (frames + std * drawn).clamp(-1, 1)


def measure_errors(network: PhysicsNetwork, videos: CollisionVideos, noise: float = 0.0) -> dict[str, float]:
    """Return what the network finds in every frame by itself, against the truth."""
    true = PhysicsFrames.of(videos.objects, videos.motion.position)
    frames = add_noise(to_unit(videos.frames), noise).flatten(0, 1)
    if frames.shape[-1] != true.frames.shape[-2]:
        frames = functional.interpolate(frames, true.frames.shape[1:3], mode="bilinear", antialias=True)
    with torch.no_grad():
        parts = [network.find(part) for part in torch.split(frames, 256)]
    found = FoundObjects(*map(torch.cat, zip(*parts, strict=True)))
    is_there = true.present > 0
    distance = (found.position - true.position).norm(dim=-1)[is_there]
    radius = (found.radius - true.radius)[is_there]
    clips = FoundObjects(*(part.unflatten(0, videos.frames.shape[:2]) for part in found))
    rows = torch.arange(len(videos.frames), device=frames.device)[:, None]
    contacts = count_contacts(clips)[rows, videos.objects.colour][videos.objects.present]
    touched = videos.motion.contact[:, 1:].sum((1, 3))[videos.objects.present].float()
    return {
        "position_rms_px": float(distance.square().mean().sqrt()),
        "position_median_px": float(distance.median()),
        "radius_rms_px": float(radius.square().mean().sqrt()),
        "shapes_right": float((found.shape.argmax(-1) == true.shape)[is_there].float().mean()),
        "colours_right": float(((found.present > 0) == is_there).float().mean()),
        "contacts_correlation": float(torch.corrcoef(torch.stack([contacts, touched]))[0, 1]),
    }


def spoil(videos: CollisionVideos) -> dict[str, Callable[[], Tensor]]:
    """Return ways to spoil all but the first frames of videos."""
    frames = to_unit(videos.frames)
    given, future = frames[:, :GIVEN], frames[:, GIVEN:]

    def join(part: Tensor) -> Tensor:
        return torch.cat([given, part], dim=1)

    def blur() -> Tensor:
        flat = functional.avg_pool2d(future.flatten(0, 1), 5, 1, 2, count_include_pad=False)
        return join(flat.reshape(future.shape))

    def pass_through() -> Tensor:
        objects, start = videos.objects, (part[:, GIVEN - 1] for part in videos.motion[:2])
        config = CollisionsConfig(frames=future.shape[1] + 1)
        alone = objects._replace(present=torch.zeros_like(objects.present))
        position = simulate_motion(alone, *start, config).position[:, 1:]
        return join(to_unit(draw_frames(objects, position, frames.shape[-1])))

    return {
        "the truth itself": lambda: frames,
        "pixel noise of 0.05": lambda: join(add_noise(future, 0.05)),
        "pixel noise of 0.2": lambda: join(add_noise(future, 0.2)),
        "blurred over 5 × 5 pixels": blur,
        "moved by one pixel": lambda: join(future.roll(1, -1)),
        "moved by two pixels": lambda: join(future.roll(2, -1)),
        "one frame late": lambda: join(frames[:, GIVEN - 1 : -1]),
        "half the speed": lambda: join(
            future[:, : (future.shape[1] + 1) // 2].repeat_interleave(2, dim=1)[:, : future.shape[1]]
        ),
        "no contacts: shapes pass through each other": pass_through,
        "frozen": lambda: join(frames[:, GIVEN - 1 : GIVEN].expand_as(future)),
        "backwards": lambda: join(future.flip(1)),
        "of another video": lambda: join(future.roll(1, 0)),
    }


def measure_distances(network: FeatureNetwork, videos: CollisionVideos) -> dict[str, float]:
    true = network.compute(to_unit(videos.frames), batch_size=32)
    found = {"two halves of the truth": frechet_distance(true[::2], true[1::2])}
    for label, make in spoil(videos).items():
        found[label] = frechet_distance(network.compute(make(), batch_size=32), true)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, help="train a network, and write its weights to this file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--videos", type=int, default=512, help="test videos")
    parser.add_argument("--tuning", action="store_true", help="use videos for choosing settings instead")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()

    results: dict[str, Any] = {"videos": args.videos, "device": device_name(args.device)}
    if args.train:
        trained, record = train_physics_network(args.device, args.seed, args.steps)
        save_physics_network(trained, args.train)
        results |= {"seed": args.seed, "steps": args.steps, "training_seconds": record.seconds}
        print(f"{args.train}: {args.steps} steps in {record.seconds:.0f} s", flush=True)
    network = load_features(args.train or PHYSICS_WEIGHTS, device=args.device)
    assert isinstance(network.module, PhysicsNetwork)
    results["weights"] = sum(parameter.numel() for parameter in network.module.parameters())
    results["errors"] = {}
    seed = COLLISION_SEEDS["tuning" if args.tuning else "test"]
    for size in (32, 64):
        config, name = CollisionsConfig(size=size), f"{size} × {size}"
        count = max(args.videos, 512)  # the first videos of a seed depend on their number
        videos = make_collisions(count, config, seed=seed, device=args.device, keep=args.videos)
        results["errors"][name] = measure_errors(network.module, videos)
    results["errors"][f"{name}, noise of 0.05"] = measure_errors(network.module, videos, 0.05)
    results["distances"] = measure_distances(network, videos)
    print(json.dumps(results, indent=1))
    if args.json:
        replace_file(args.json, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
