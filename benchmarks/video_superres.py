"""Frames between frames: predict `collisions` at a fifth of the period that models were trained on.

    python benchmarks/video_superres.py --device cuda --out out/superres
    python benchmarks/video_superres.py --smoke --device cpu

Trains on whole frames only: two Neural SDEs on pixels (one call a frame; interpolated, for steps of Δt / 5),
layers with keypoints, and a Neural SDE on these keypoints (steps of Δt / 5). Then scores the frames between
predicted frames: PSNR, position, and whether contacts that no whole frame shows are reached and rebounded.
`next` predicts each frame of a test video from the four before it, `rollout` twelve from the first four.
Writes scores.json. Models that --out holds already are not trained again.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from video_contacts import SUBSTEPS, cross_fade, find_skipped_contacts, find_touching_pairs, score_contacts
from video_keypoints import (
    KeypointMotion,
    KeypointVideo,
    LayerAutoencoder,
    LayerConfig,
    MotionConfig,
    track,
    train_layers,
    train_motion,
)

from nsde_policy.config import TrainConfig
from nsde_policy.eval.latency import device_name
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.eval.video.positions import find_visible, score_positions
from nsde_policy.methods.base import TrainableModel
from nsde_policy.training.loop import Training
from nsde_policy.video.base import stack_state
from nsde_policy.video.collisions import (
    COLLISION_SEEDS,
    CollisionsConfig,
    CollisionVideos,
    Motion,
    Objects,
    draw_frames,
    make_collisions,
    simulate_collisions,
)
from nsde_policy.video.config import FULL_TRAINING, UViTConfig
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.methods.neural_sde.model import NeuralSDEVideo
from nsde_policy.video.pixels import psnr, to_unit
from nsde_policy.video.windows import Videos

CONTEXT, FRAMES, ROLLOUT = 4, 20, 12
"""Frames of the context, whole frames of a test video, predicted frames of a rollout."""
INTERPOLATED = {"interpolation": "uniform", "random_noise": False, "noise": 0.1}
"""Settings of the model of pixels that is sampled in steps of Δt / 5."""
Predict = Callable[[Tensor, int], Tensor]
"""Takes context frames (n, 4, size, size, 3) uint8 and a number of frames; returns five times as many frames
(n, 5 · steps, 3, size, size)."""


class Sizes(NamedTuple):
    """How much is trained and scored."""

    size: int = 64
    train_videos: int = 16_384
    test_videos: int = 2048
    """Videos in which contacts are looked for."""
    drawn_videos: int = 512
    """Videos of which all frames are scored."""
    rollout_videos: int = 1536
    pixel_steps: int = 2000
    layers: LayerConfig = LayerConfig()
    motion: MotionConfig = MotionConfig()
    network: UViTConfig = UViTConfig()


def make_small() -> Sizes:
    """Return sizes to see that everything works."""
    tiny = TrainConfig(steps=5, batch_size=16, log_every=10)
    return Sizes(
        32, 64, 24, 4, 4, 5,
        replace(LayerConfig(), width=16, train=tiny),
        replace(MotionConfig(), width=16, train=tiny),
        UViTConfig(width=32, depth=3, stem=(8, 16), features=8),
    )  # fmt: skip


class Clips(NamedTuple):
    """Contexts and the true frames after them, the newest frame of the context first."""

    context: Tensor
    videos: CollisionVideos
    true: Tensor


class TestSet:
    """Simulated videos, of which only the clips that are scored are drawn."""

    def __init__(self, videos: int, size: int, seed: int, device: str) -> None:
        config = CollisionsConfig(size=size, frames=FRAMES, substeps=SUBSTEPS)
        self.objects, self.motion = simulate_collisions(videos, config, seed=seed, device=device)
        self.size = size

    def find_contacts(self) -> Tensor:
        """Return video and first frame of the context of each clip with a skipped contact, (clips, 2)."""
        pairs = find_touching_pairs(self.motion.contact)[:, CONTEXT - 1 :]
        likely = pairs.flatten(2).any(-1).nonzero()
        found = []
        for part in likely.split(256):
            clips = self.draw(part, 1)
            contacts = find_skipped_contacts(clips.true, clips.videos)
            found.append(part[contacts.video.unique()])
        return torch.cat(found)

    def find_all(self, videos: int, steps: int) -> Tensor:
        """Return video and first frame of the context of clips of the first videos, `steps` frames apart."""
        starts = torch.arange(0, FRAMES - CONTEXT - steps + 1, steps, device=self.motion.contact.device)
        return torch.cartesian_prod(torch.arange(videos, device=starts.device), starts)

    def draw(self, rows: Tensor, steps: int) -> Clips:
        """Draw clips of `steps` predicted frames, given video and first frame of the context, (n, 2)."""
        video, start = rows.unbind(1)
        newest = (start + CONTEXT - 1) * SUBSTEPS
        fine = newest[:, None] + torch.arange(steps * SUBSTEPS + 1, device=rows.device)
        whole = (start[:, None] + torch.arange(CONTEXT, device=rows.device)) * SUBSTEPS
        objects = Objects(*(part[video] for part in self.objects))
        motion = Motion(*(part[video[:, None], fine] for part in self.motion))
        frames = draw_frames(objects, motion.position, self.size)
        context = draw_frames(objects, self.motion.position[video[:, None], whole], self.size)
        return Clips(context, CollisionVideos(frames, objects, motion), to_unit(frames))


def score(
    predictors: dict[str, Predict], test: TestSet, rows: Tensor, steps: int, batch: int, *, contacts: bool
) -> dict[str, Any]:
    """Score all predictors on clips: their contacts, or their frames; returns plain numbers by label."""
    parts: dict[str, dict[str, list[Tensor]]] = {}
    for part in rows.split(batch):
        clips = test.draw(part, steps)
        newest = clips.true[:, :1]
        shown = {"truth": clips.true, "cross-fade of true frames": cross_fade(clips.true[:, ::SUBSTEPS])}
        shown |= {label: torch.cat([newest, p(clips.context, steps)], 1) for label, p in predictors.items()}
        for label, frames in shown.items():
            figures = score_contact_clips(frames, clips) if contacts else score_frames(frames, clips)
            for name, values in figures.items():
                parts.setdefault(label, {}).setdefault(name, []).append(values.cpu())
    joined = {label: {n: torch.cat(v) for n, v in figures.items()} for label, figures in parts.items()}
    return {label: summarise(figures, rows[:, 0].cpu()) for label, figures in joined.items()}


def score_contact_clips(frames: Tensor, clips: Clips) -> dict[str, Tensor]:
    """Return the outcome of each skipped contact."""
    _, reached, rebounded = score_contacts(frames, clips.true, clips.videos)
    return {"reached": reached, "rebounded": rebounded}


def score_frames(frames: Tensor, clips: Clips) -> dict[str, Tensor]:
    """Return figures of each clip."""
    between = [k for k in range(frames.shape[1]) if k % SUBSTEPS]
    quality = psnr(frames, clips.true)
    visible = find_visible(clips.true, clips.videos.objects)
    errors = score_positions(frames, clips.videos.objects, clips.videos.motion.position, visible)
    return {
        "between_psnr": quality[:, between].mean(1),
        "whole_psnr": quality[:, SUBSTEPS::SUBSTEPS].mean(1),
        "position_error": errors.distance[:, between].sum(1) / errors.found[:, between].sum(1).clamp(min=1),
    }


def summarise(figures: dict[str, Tensor], video: Tensor) -> dict[str, Any]:
    """Return means with intervals: Wilson for contacts, else bootstrap over videos."""
    out: dict[str, Any] = {}
    for name, values in figures.items():
        if name in ("reached", "rebounded"):
            out[name] = vars(proportion(int(values.sum()), len(values))) if len(values) else None
        else:
            clips = torch.zeros(int(video.max()) + 1).index_add(0, video, torch.ones(len(video)))
            total = torch.zeros(len(clips)).index_add(0, video, values.float())
            out[name] = vars(mean((total / clips)[clips > 0].double().numpy()))
    return out


class Trainer:
    """Trains the models of the benchmark, or loads those that `out` holds already."""

    def __init__(self, sizes: Sizes, out: Path, seed: int, device: str) -> None:
        self.sizes = sizes
        self.out = out
        self.seed = seed
        self.device = device
        self.seconds: dict[str, float] = {}

    @functools.cached_property
    def frames(self) -> Tensor:
        """Make the training videos, (videos, 16, size, size, 3)."""
        config = CollisionsConfig(size=self.sizes.size)
        return make_collisions(self.sizes.train_videos, config, seed=self.seed, device=self.device).frames

    def obtain(self, name: str, model: TrainableModel[Any], train: Callable[[], TrainableModel[Any]]) -> Any:
        """Return the model that was trained before under this name, or train and save it."""
        path, started = self.out / f"{name}.safetensors", time.perf_counter()
        if path.exists():
            model.load_state_dict(load_file(path))
            return model.to(self.device).eval()
        trained = train()
        save_file(trained.state_dict(), path)
        self.seconds[name] = round(time.perf_counter() - started, 2)
        print(f"{name}: {self.seconds[name]:.1f} s", flush=True)
        return trained

    def train_keypoints(self) -> KeypointVideo:
        """Train or load the layers and the motion of keypoints."""
        config, motion, generator = self.sizes.layers, self.sizes.motion, torch.Generator()
        empty = LayerAutoencoder(config, size=self.sizes.size, generator=generator)
        layers = self.obtain("layers", empty, lambda: train_layers(self.frames, config, seed=self.seed))

        def train() -> KeypointMotion:
            return train_motion(track(layers, self.frames, motion), motion, crop=config.crop, seed=self.seed)

        untrained = KeypointMotion(motion, crop=config.crop, unit=1.0, generator=generator)
        return KeypointVideo(layers, self.obtain(f"motion_{SUBSTEPS}", untrained, train))

    def train_pixels(self, name: str, **options: Any) -> NeuralSDEVideo:
        """Train or load a Neural SDE on pixels, first stage only."""
        sizes = self.sizes
        config = NeuralSDEVideoConfig(network=sizes.network, **options)
        settings = replace(FULL_TRAINING, steps=sizes.pixel_steps)
        settings = replace(settings, batch_size=min(settings.batch_size, sizes.train_videos // 4))

        def build(increment_std: float) -> NeuralSDEVideo:
            generator = torch.Generator().manual_seed(self.seed)
            return NeuralSDEVideo(config, size=sizes.size, increment_std=increment_std, generator=generator)

        def train() -> NeuralSDEVideo:
            videos = Videos.from_tensor(self.frames)
            model = build(videos.increment_std()).to(self.device)
            source = videos.source(model.window, settings.batch_size, device=self.device, seed=self.seed)
            training = Training(model, source, settings, seed=self.seed)
            while training.step < settings.steps:
                training.advance(settings.log_every)
            training.finish()
            return model

        model: NeuralSDEVideo = self.obtain(name, build(1.0), train)
        return model


def predict_with_pixels(model: NeuralSDEVideo, *, fine: bool) -> Predict:
    """Return a predictor: substeps of the model, or a cross-fade of its frames."""

    @torch.no_grad()
    def predict(context: Tensor, steps: int) -> Tensor:
        generator = torch.Generator(context.device).manual_seed(0)
        if not fine:
            frames = model.generate(context, steps=steps, generator=generator)
            return cross_fade(torch.cat([to_unit(context[:, -1:]), frames], dim=1))[:, 1:]
        sampling = replace(model.config.sampling, substeps=SUBSTEPS)
        state, found = stack_state(to_unit(context)), []
        for _ in range(steps):
            path = model.solve(state, sampling=sampling, generator=generator)[1:]
            found += [each[:, :3].clamp(-1, 1) for each in path]
            state = torch.cat([path[-1][:, :3].clamp(-1, 1), state[:, :-3]], dim=1)
        return torch.stack(found, dim=1)

    return predict


def predict_with_keypoints(model: KeypointVideo, *, fine: bool) -> Predict:
    """Return a predictor: substeps of the model, or a cross-fade of its whole frames."""

    def predict(context: Tensor, steps: int) -> Tensor:
        frames = model.generate(context, steps=steps)
        if fine:
            return frames
        whole = frames[:, SUBSTEPS - 1 :: SUBSTEPS]
        return cross_fade(torch.cat([to_unit(context[:, -1:]), whole], dim=1))[:, 1:]

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out/superres"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="tiny models and few videos")
    parser.add_argument("--tuning", action="store_true", help="score tuning videos instead of test videos")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = make_small() if args.smoke else Sizes()
    trainer = Trainer(sizes, args.out, args.seed, args.device)
    keypoints = trainer.train_keypoints()
    predictors = {
        "keypoints, steps of Δt / 5": predict_with_keypoints(keypoints, fine=True),
        "– cross-fade of its frames": predict_with_keypoints(keypoints, fine=False),
        "pixels, one call a frame, cross-fade": predict_with_pixels(
            trainer.train_pixels("pixels"), fine=False
        ),
        "pixels, 5 steps of Δt / 5": predict_with_pixels(
            trainer.train_pixels("pixels_interpolated", **INTERPOLATED), fine=True
        ),
    }
    seed = COLLISION_SEEDS["tuning" if args.tuning else "test"]
    test = TestSet(sizes.test_videos, sizes.size, seed, args.device)
    contacts, found = test.find_contacts(), dict[str, Any]()
    for name, videos, steps in (("next", sizes.drawn_videos, 1), ("rollout", sizes.rollout_videos, ROLLOUT)):
        rows = test.find_all(videos, steps)
        batch = max((64 if args.device == "cpu" else 512) // steps, 1)
        frames = score(predictors, test, rows, steps, batch, contacts=False)
        outcomes = score(predictors, test, contacts if name == "next" else rows, steps, batch, contacts=True)
        found[name] = {label: {**row, **outcomes[label]} for label, row in frames.items()}
        for label, row in found[name].items():
            figures = {key: round(each["value"], 3) for key, each in row.items() if each}
            print(f"{name}, {label}: {figures}", flush=True)
        record = {
            "device": device_name(args.device),
            "test_seed": seed,
            "seconds": trainer.seconds,
            "scores": found,
        }
        (args.out / "scores.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
