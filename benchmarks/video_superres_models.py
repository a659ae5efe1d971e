"""Models of benchmarks/video_superres.py: layers, motion of keypoints and pixels, trained or loaded."""

import argparse
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from video_superres_scores import SUBSTEPS

from nsde_policy.config import TrainConfig
from nsde_policy.methods.base import TrainableModel
from nsde_policy.training.loop import Training
from nsde_policy.video.collisions import COLLISION_SEEDS, CollisionsConfig, make_collisions
from nsde_policy.video.config import BackboneConfig
from nsde_policy.video.keypoints.config import LayerConfig, MotionConfig
from nsde_policy.video.keypoints.layers import LayerAutoencoder
from nsde_policy.video.keypoints.model import KeypointVideo, track, train_layers, train_motion
from nsde_policy.video.keypoints.motion import KeypointMotion, TrackWindows
from nsde_policy.video.methods.neural_sde.config import NeuralSDEVideoConfig
from nsde_policy.video.methods.neural_sde.model import NeuralSDEVideo
from nsde_policy.video.presets import make_video_preset
from nsde_policy.video.spaces import to_unit
from nsde_policy.video.windows import Videos


class Trainer:
    """Trains the models of the benchmark, or loads those that `out` holds already."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.out, self.seed, self.device, self.small = args.out, args.seed, args.device, args.small
        self.size = 32 if args.small else 64
        self.videos, self.steps = args.train_videos, args.steps
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()
        tiny = TrainConfig(steps=2, batch_size=16, log_every=10)
        plain = (LayerConfig(), MotionConfig())
        layers, motion = (replace(each, width=16, train=tiny) for each in plain) if args.small else plain
        self.layer_config = with_steps(layers, args.steps["layers"])
        self.motion_config = with_steps(motion, args.steps["motion"])
        if args.delta:
            self.motion_config = replace(self.motion_config, delta=args.delta)
        if args.batch_size:
            self.motion_config = with_steps(self.motion_config, args.steps["motion"], args.batch_size)

    def lap(self, name: str) -> None:
        """Record and print the time since the last call."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.seconds[name] = round(time.perf_counter() - self._started, 2)
        print(f"{name}: {self.seconds[name]:.1f} s", flush=True)
        self._started = time.perf_counter()

    @functools.cached_property
    def frames(self) -> Tensor:
        """Make the training videos, (videos, 16, size, size, 3)."""
        made = make_collisions(
            self.videos, CollisionsConfig(size=self.size), seed=self.seed, device=self.device
        )
        self.lap("training videos")
        return made.frames

    def obtain(self, name: str, model: TrainableModel[Any], train: Callable[[], TrainableModel[Any]]) -> Any:
        """Return the model that was trained before under this name, or train and save it."""
        path = self.out / f"{name}.safetensors"
        if path.exists():
            model.load_state_dict(load_file(path))
            return model.to(self.device).eval()
        trained = train()
        save_file(trained.state_dict(), path)
        self.lap(name)
        return trained

    def train_layers(self) -> LayerAutoencoder:
        """Train or load the layers."""
        config = self.layer_config
        empty = LayerAutoencoder(config, size=self.size, generator=torch.Generator())
        return self.obtain("layers", empty, lambda: train_layers(self.frames, config, seed=self.seed)[0])

    def train_motion(self, layers: LayerAutoencoder) -> dict[int, KeypointVideo]:
        """Train or load the motion with five steps a frame and with one."""
        models, crop, tracks = {}, self.layer_config.crop, functools.cache(lambda: self._track(layers))
        for substeps in (SUBSTEPS, 1):
            config = replace(self.motion_config, substeps=substeps)
            empty = KeypointMotion(config, crop=crop, unit=1.0, generator=torch.Generator())

            def train(config: MotionConfig = config) -> KeypointMotion:
                return train_motion(tracks(), config, crop=crop, seed=self.seed)[0]

            motion = self.obtain(f"motion_{substeps}", empty, train)
            print(describe_motion(motion), flush=True)
            models[substeps] = KeypointVideo(layers, motion)
        return models

    def _track(self, layers: LayerAutoencoder) -> TrackWindows:
        tracks = track(layers, self.frames, self.motion_config)
        self.lap("keypoints of the training videos")
        return tracks

    def train_pixels(self, name: str, **options: Any) -> NeuralSDEVideo:
        """Train or load a Neural SDE on pixels, first phase only."""
        backbone = (
            BackboneConfig(width=32, depth=3, stem=(8, 16), features=8) if self.small else BackboneConfig()
        )
        config = NeuralSDEVideoConfig(backbone=backbone, **options)
        settings = make_video_preset("default").train
        settings = replace(settings, steps=self.steps["pixel"], batch_size=16 if self.small else 128)

        def build(increment_std: float) -> NeuralSDEVideo:
            return NeuralSDEVideo(
                config, size=self.size, act_dim=0, increment_std=increment_std,
                generator=torch.Generator().manual_seed(self.seed),
            )  # fmt: skip

        def train() -> NeuralSDEVideo:
            videos = Videos.from_tensor(self.frames)
            model = build(videos.increment_std()).to(self.device)
            source = videos.source(model.window, settings.batch_size, device=self.device, seed=self.seed)
            training = Training(model, source, settings, seed=self.seed)
            while training.step < settings.steps:
                training.advance(settings.log_every)
            training.finish()
            return model

        return self.obtain(name, build(1.0), train)


def with_steps(config: Any, steps: int, batch_size: int | None = None) -> Any:
    """Return settings with another number of training steps, and another batch size if given."""
    train = replace(config.train, steps=steps, batch_size=batch_size or config.train.batch_size)
    return replace(config, train=train)


def describe_layers(layers: Any, size: int, device: str) -> dict[str, float]:
    """Return how well keypoints agree with the true positions of tuning videos."""
    videos = make_collisions(
        256, CollisionsConfig(size=size, frames=2), seed=COLLISION_SEEDS["tuning"], device=device
    )
    cut = layers.cut(to_unit(videos.frames[:, 0]))
    place = cut.keypoints * 32 + 32 + 1e4 * (1 - cut.present[..., None])
    is_there = videos.objects.present
    error = torch.cdist(videos.motion.position[:, 0], place).amin(2)[is_there]
    return {
        "median distance of an object to a keypoint, px": round(float(error.median()), 4),
        "share of objects within 0.5 px": round(float((error < 0.5).float().mean()), 4),
        "keypoints per object": round(float(cut.present.sum() / is_there.sum()), 4),
    }


def describe_motion(motion: Any) -> dict[str, float]:
    """Return what was learned about contacts and corrections."""
    field = motion.field
    return {
        "unit, px": round(float(field.unit) * 32, 3),
        "pair sharpness": round(float(field.pair.log_sharpness.detach().exp()), 2),
        "edge sharpness": round(float(field.edge.log_sharpness.detach().exp()), 2),
        "gain": round(float(torch.sigmoid(motion.gain.detach())), 3),
    }
