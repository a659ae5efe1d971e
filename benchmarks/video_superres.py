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
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from video_superres_models import Trainer, describe_layers
from video_superres_scores import SUBSTEPS, Predict, TestSet, draw_contacts, print_table, score

from nsde_policy.eval.video.contacts import cross_fade
from nsde_policy.video.base import stack_state
from nsde_policy.video.collisions import COLLISION_SEEDS
from nsde_policy.video.keypoints.model import KeypointVideo
from nsde_policy.video.methods.neural_sde.model import NeuralSDEVideo
from nsde_policy.video.spaces import to_unit

ROLLOUT = 12
"""Frames of a long prediction."""
FINE_KEYPOINTS = "keypoints, steps of Δt / 5"
KINKED_KEYPOINTS = "keypoints, one step a frame, kinked lines"
FADED_PIXELS, FINE_PIXELS = "pixels, one call a frame, cross-fade", "pixels, 5 steps of Δt / 5"


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


if __name__ == "__main__":
    main()
