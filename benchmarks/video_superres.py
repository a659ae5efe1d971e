"""Frames between frames: predict `collisions` at a fifth of the period that models were trained on.

    python benchmarks/video_superres.py --device cuda --out out/superres

Trains on whole frames only: two Neural SDEs on pixels (one call a frame; interpolated, for steps of Δt / 5),
layers with keypoints, and two Neural SDEs on these keypoints (steps of Δt / 5; one step a frame). Then scores
the frames between predicted frames: PSNR, position, and whether contacts that no whole frame shows are
reached and rebounded. Writes scores.json and film strips of contacts. `--small --device cpu` is a smoke test.

Models that --out holds already are not trained again.

Predictions start from four true frames. `next`: each frame of a test video is predicted from the four before
it. `rollout`: twelve frames are predicted from the first four.
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

from nsde_policy.config import TrainConfig
from nsde_policy.eval.compare.table import format_markdown
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.eval.video.contacts import (
    cross_fade,
    find_skipped_contacts,
    measure_separation,
    score_contacts,
)
from nsde_policy.eval.video.figures import draw_film_strip
from nsde_policy.eval.video.metrics import psnr
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

SUBSTEPS, CONTEXT, ROLLOUT, FRAMES = 5, 4, 12, 20
FINE_KEYPOINTS = "keypoints, steps of Δt / 5"
KINKED_KEYPOINTS = "keypoints, one step a frame, kinked lines"
FADED_PIXELS, FINE_PIXELS = "pixels, one call a frame, cross-fade", "pixels, 5 steps of Δt / 5"
Predict = Callable[[Tensor, int], Tensor]
"""Takes context frames (n, 4, size, size, 3) uint8 and a number of frames; returns five times as many frames
(n, 5 · steps, 3, size, size)."""


class Clips(NamedTuple):
    """Contexts and the true frames after them, the newest frame of the context first."""

    context: Tensor
    videos: CollisionVideos
    true: Tensor


def predict_with_pixels(model: NeuralSDEVideo, *, fine: bool) -> Predict:
    """Return a predictor: substeps of the model, or a cross-fade of its frames."""

    @torch.no_grad()
    def predict(context: Tensor, steps: int) -> Tensor:
        generator = torch.Generator(context.device).manual_seed(0)
        actions = torch.zeros((len(context), steps, 0), device=context.device)
        if not fine:
            frames = model.generate(context, actions, steps=steps, generator=generator)
            return cross_fade(torch.cat([to_unit(context[:, -1:]), frames], dim=1))[:, 1:]
        state, found = stack_state(to_unit(context)), []
        for k in range(steps):
            path = model.substeps(state, actions[:, k], SUBSTEPS, generator, model.config.alpha, 0.0)
            found += [each[:, :3].clamp(-1, 1) for each in path]
            state = torch.cat([path[-1][:, :3].clamp(-1, 1), state[:, :-3]], dim=1)
        return torch.stack(found, dim=1)

    return predict


def predict_with_keypoints(model: KeypointVideo, between: str) -> Predict:
    """Return a predictor; `cross-fade` mixes the whole frames of the model."""

    def predict(context: Tensor, steps: int) -> Tensor:
        if between != "cross-fade":
            return model.generate(context, steps=steps, substeps=SUBSTEPS, between=between)  # type: ignore[arg-type]
        frames = model.generate(context, steps=steps, substeps=1, between="straight")
        return cross_fade(torch.cat([to_unit(context[:, -1:]), frames], dim=1))[:, 1:]

    return predict


class TestSet:
    """Simulated videos, of which only the clips that are scored are drawn."""

    def __init__(self, videos: int, size: int, seed: int, device: str) -> None:
        config = CollisionsConfig(size=size, frames=FRAMES, substeps=SUBSTEPS)
        self.objects, self.motion = simulate_collisions(videos, config, seed=seed, device=device)
        self.size = size

    def find_contacts(self) -> Tensor:
        """Return video and first frame of the context of each clip with a skipped contact, (clips, 2)."""
        length = (FRAMES - 1) * SUBSTEPS
        touches = self.motion.contact[:, 1 : length + 1].unflatten(1, (-1, SUBSTEPS)).any(2)[:, CONTEXT - 1 :]
        alone = touches.sum(-1) == 1
        likely = (touches & alone[..., None] & alone[..., None, :]).flatten(2).any(-1).nonzero()
        found = []
        for part in likely.split(256):
            clips = self.draw(part, 1)
            contacts = find_skipped_contacts(clips.true, clips.videos, substeps=SUBSTEPS)
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
    contacts = score_contacts(frames, clips.true, clips.videos, substeps=SUBSTEPS)
    return {"reached": contacts.reached, "rebounded": contacts.rebounded}


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


def print_table(title: str, scores: dict[str, Any]) -> None:
    names = ["between_psnr", "whole_psnr", "position_error", "reached", "rebounded"]
    lines = []
    for label, row in scores.items():
        cells = [row[n] for n in names]
        lines.append(
            [label, *(f"{c['value']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" if c else "-" for c in cells)]
        )
    reached = next(iter(scores.values()))["reached"]
    print(f"\n{title}: {reached['n'] if reached else 0} skipped contacts")
    print(format_markdown(["", *names], lines), flush=True)


def draw_contacts(predictors: dict[str, Predict], test: TestSet, rows: Tensor, out: Path) -> None:
    """Draw film strips of the three fastest skipped contacts among clips, cut out around the contact."""
    clips = test.draw(rows, 1)
    contacts = score_contacts(clips.true, clips.true, clips.videos, substeps=SUBSTEPS).contacts
    apart = measure_separation(clips.true, clips.videos.objects, contacts, substeps=SUBSTEPS)
    speed = (apart[:, 1] - apart[:, 0]).norm(dim=-1)
    half = test.size // 4
    for number, k in enumerate(speed.argsort(descending=True)[:3].tolist()):
        row, i, j = (int(part[k]) for part in (contacts.video, contacts.first, contacts.second))
        centre = clips.videos.motion.position[row, 2, [i, j]].mean(0) * (test.size / 64)
        left, top = (int(c.clamp(half, test.size - half).round()) - half for c in centre)
        area = (slice(top, top + 2 * half), slice(left, left + 2 * half))
        context = clips.context[row : row + 1]
        shown = {"truth": clips.true[row, 1:]}
        shown["cross-fade of true frames"] = cross_fade(clips.true[row : row + 1, ::SUBSTEPS])[0, 1:]
        shown |= {label: predict(context, 1)[0] for label, predict in predictors.items()}
        cut = {label: video[:, :, area[0], area[1]] for label, video in shown.items()}
        draw_film_strip(context[0][:, area[0], area[1]], cut, out, name=f"contact_{number}")


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


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("out/superres"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="a smoke test with tiny models and few videos")
    parser.add_argument("--tune", action="store_true", help="score tuning videos instead of test videos")
    parser.add_argument("--without-pixels", action="store_true", help="leave out the models of pixels")
    parser.add_argument("--train-videos", type=int)
    parser.add_argument("--videos", type=int, help="test videos, in which contacts are looked for")
    parser.add_argument("--drawn-videos", type=int, help="test videos of which all frames are scored")
    parser.add_argument("--rollout-videos", type=int, help="test videos of which 12 frames are predicted")
    parser.add_argument("--delta", type=float, help="of the log loss of motion; 1e6 is the square loss")
    parser.add_argument("--batch-size", type=int, help="of the training of motion")
    for part in ("pixel", "layer", "motion"):
        parser.add_argument(f"--{part}-steps", type=int)
    args = parser.parse_args()
    sizes = (64, 24, 4, 4, 20, 40, 40) if args.small else (16_384, 2048, 512, 1536, 2000, 3000, 4000)
    for name, usual in zip(("train_videos", "videos", "drawn_videos", "rollout_videos"), sizes, strict=False):
        if getattr(args, name) is None:
            setattr(args, name, usual)
    args.drawn_videos = min(args.drawn_videos, args.videos)
    args.rollout_videos = min(args.rollout_videos, args.videos)
    given = {"pixel": args.pixel_steps, "layers": args.layer_steps, "motion": args.motion_steps}
    args.steps = {name: steps or usual for (name, steps), usual in zip(given.items(), sizes[4:], strict=True)}
    return args


def main() -> None:
    args = parse_arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args)
    layers = trainer.train_layers()
    found = describe_layers(layers, trainer.size, args.device)
    print(found, flush=True)
    models = trainer.train_motion(layers)
    predictors = {
        FINE_KEYPOINTS: predict_with_keypoints(models[SUBSTEPS], "solver"),
        "– cross-fade of its frames": predict_with_keypoints(models[SUBSTEPS], "cross-fade"),
        "– straight lines between its frames": predict_with_keypoints(models[SUBSTEPS], "straight"),
        KINKED_KEYPOINTS: predict_with_keypoints(models[1], "kink"),
        "– cross-fade of the frames of one step": predict_with_keypoints(models[1], "cross-fade"),
    }
    if not args.without_pixels:
        predictors[FADED_PIXELS] = predict_with_pixels(trainer.train_pixels("pixels"), fine=False)
        options = {"interpolation": "uniform", "noise": "fixed", "context_noise": 0.1}
        model = trainer.train_pixels("pixels_interpolated", **options)
        predictors[FINE_PIXELS] = predict_with_pixels(model, fine=True)
    seed = COLLISION_SEEDS["tuning" if args.tune else "test"]
    test = TestSet(args.videos, trainer.size, seed, args.device)
    trainer.lap("simulation of the test videos")
    record: dict[str, Any] = {
        "settings": {
            "seed": args.seed, "train_videos": args.train_videos, "test_seed": seed,
            "test_videos": args.videos, "drawn_videos": args.drawn_videos,
            "rollout_videos": args.rollout_videos, "size": trainer.size, "pixel_steps": args.steps["pixel"],
            "layers": trainer.layer_config.to_dict(), "motion": trainer.motion_config.to_dict(),
        },
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "cpu",
        "seconds": trainer.seconds,
        "keypoints": found,
        "scores": {},
    }  # fmt: skip
    contacts = test.find_contacts()
    for name, videos, steps in (("next", args.drawn_videos, 1), ("rollout", args.rollout_videos, ROLLOUT)):
        if not videos:
            continue
        rows = test.find_all(videos, steps)
        batch = max((64 if args.device == "cpu" else 512) // steps, 1)
        frames = score(predictors, test, rows, steps, batch, contacts=False)
        clips = contacts if name == "next" else rows
        outcomes = score(predictors, test, clips, steps, batch, contacts=True)
        record["scores"][name] = {label: {**row, **outcomes[label]} for label, row in frames.items()}
        trainer.lap(f"scores, {name}")
        print_table(name, record["scores"][name])
        (args.out / "scores.json").write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    shown = {
        label: predictors[label]
        for label in (FINE_KEYPOINTS, KINKED_KEYPOINTS, FADED_PIXELS, FINE_PIXELS)
        if label in predictors
    }
    draw_contacts(shown, test, contacts[:256], args.out)
    trainer.lap("figures")
    print(f"total: {sum(trainer.seconds.values()):.1f} s")


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


if __name__ == "__main__":
    main()
