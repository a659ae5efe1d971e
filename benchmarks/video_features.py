"""Train the physics network of `nsde_policy.eval.video` and check what its features notice.

    python benchmarks/video_features.py --device cuda --out physics.safetensors

Prints what the network finds in held-out clips, the Fréchet distance and JEDi of true videos that were spoilt
in known ways, with the distance between two halves of the true videos as floor, contacts between frames, and
the time of an evaluation of 512 videos over 12 and 36 frames. Needs a GPU: a CPU takes seconds per step.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from nsde_policy.eval.video.contacts import cross_fade, score_contacts
from nsde_policy.eval.video.distances import frechet_distance, jedi_distance
from nsde_policy.eval.video.evaluate import VideosToScore, evaluate_video
from nsde_policy.eval.video.features import FeatureNetwork, wrap_physics_network
from nsde_policy.eval.video.physics import (
    PhysicsClips,
    PhysicsNetwork,
    save_physics_network,
    train_physics_features,
)
from nsde_policy.video.collisions import CollisionsConfig, CollisionVideos, Motion, make_collisions
from nsde_policy.video.spaces import to_unit

HELD_OUT_SEED = 10_000


def describe_facts(network: PhysicsNetwork, videos: CollisionVideos) -> str:
    clips = PhysicsClips.of(videos)
    with torch.no_grad():
        parts = [network(to_unit(part).transpose(1, 2)) for part in torch.split(clips.frames, 64)]
        found = network.read_facts(torch.cat(parts))
    is_there = clips.present > 0
    error = (found.motion - clips.motion)[is_there].square().mean(0).sqrt() * torch.tensor(
        [32, 32, 32, 32, 3, 3], device=is_there.device
    )
    first, last, velocity = (float(pair.square().sum().sqrt()) for pair in torch.split(error, 2))
    right = float(((found.present > 0) == is_there).float().mean())
    shape = float((found.shape.argmax(-1) == clips.shape)[is_there].float().mean())
    return (
        f"held out: colours {right:.2%} right, shapes {shape:.2%}; root mean square error of the first "
        f"position {first:.2f} px, the last {last:.2f} px, velocity {velocity:.2f} px per frame"
    )


def spoil(frames: Tensor, generator: torch.Generator) -> dict[str, Callable[[], Tensor]]:
    """Return ways to spoil the last 12 of 16 frames."""
    given, future = frames[:, :4], frames[:, 4:]

    def join(part: Tensor) -> Tensor:
        return torch.cat([given, part], dim=1)

    def noise(std: float) -> Tensor:
        drawn = torch.randn(future.shape, generator=generator, device=frames.device)
        return join((future + std * drawn).clamp(-1, 1))

    def blur() -> Tensor:
        flat = functional.avg_pool2d(future.flatten(0, 1), 5, 1, 2, count_include_pad=False)
        return join(flat.reshape(future.shape))

    return {
        "the truth itself": lambda: frames,
        "pixel noise 0.05": lambda: noise(0.05),
        "pixel noise 0.2": lambda: noise(0.2),
        "blurred over 5 × 5 pixels": blur,
        "moved by one pixel": lambda: join(future.roll(1, -1)),
        "one frame late": lambda: join(frames[:, 3:-1]),
        "half the speed": lambda: join(frames[:, 4:10].repeat_interleave(2, dim=1)),
        "frozen": lambda: join(frames[:, 3:4].expand_as(future)),
        "backwards": lambda: join(future.flip(1)),
        "of another video": lambda: join(future.roll(1, 0)),
    }


def print_distances(network: FeatureNetwork, frames: Tensor) -> None:
    generator = torch.Generator(frames.device).manual_seed(0)
    true = network.compute(frames, batch_size=128)
    half = len(true) // 2
    print("| predicted frames | FD | JEDi |\n| --- | --- | --- |")
    print(
        f"| two halves of the truth | {frechet_distance(true[:half], true[half:]):.4f} | "
        f"{jedi_distance(true[:half], true[half:]):.5f} |"
    )
    for label, make in spoil(frames, generator).items():
        found = network.compute(make(), batch_size=128)
        print(f"| {label} | {frechet_distance(found, true):.4f} | {jedi_distance(found, true):.5f} |")


def print_contacts(videos: int, device: str) -> None:
    made = make_collisions(
        videos, CollisionsConfig(frames=17, substeps=5), seed=HELD_OUT_SEED + 1, device=device
    )
    length = 16 * 5 + 1
    motion = Motion(*(part[:, :length] for part in made.motion))
    cut = CollisionVideos(made.frames[:, :length], made.objects, motion)
    frames = to_unit(cut.frames)
    for label, shown in (("truth", frames), ("cross-fade", cross_fade(frames[:, ::5]))):
        scores = score_contacts(shown, frames, cut)
        print(
            f"{label}: {len(scores.reached)} skipped contacts, reached {scores.estimate('reached')}, "
            f"rebounded {scores.estimate('rebounded')}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--train-videos", type=int, default=16_384)
    parser.add_argument("--videos", type=int, default=512, help="held-out videos")
    parser.add_argument("--out", type=Path, help="file for the weights")
    args = parser.parse_args()

    network, record = train_physics_features(args.device, args.seed, args.steps, videos=args.train_videos)
    last = ", ".join(f"{name} {losses[-1]:.4f}" for name, losses in record.losses.items())
    count = sum(parameter.numel() for parameter in network.parameters())
    print(f"{count} weights, {args.steps} steps in {record.seconds:.1f} s; losses: {last}", flush=True)
    if args.out is not None:
        save_physics_network(network, args.out)
        print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")
    config = CollisionsConfig(frames=40)
    videos = make_collisions(args.videos, config, seed=HELD_OUT_SEED, device=args.device)
    clips = CollisionVideos(
        videos.frames[:, :16], videos.objects, Motion(*(part[:, :16] for part in videos.motion))
    )
    print(describe_facts(network, clips), flush=True)
    wrapped = wrap_physics_network(network)
    print_distances(wrapped, to_unit(clips.frames))
    print_contacts(args.videos, args.device)
    for steps in (12, 36):
        started = time.perf_counter()
        scores = evaluate_video(
            {}, VideosToScore.from_collisions(videos), steps=steps, batch_size=64, device=args.device,
            networks={"FD": wrapped},
        )  # fmt: skip
        took = time.perf_counter() - started
        print(f"\n{args.videos} videos, {steps} frames, both baselines: {took:.2f} s\n")
        print(scores.format_table(), flush=True)


if __name__ == "__main__":
    main()
