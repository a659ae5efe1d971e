"""Frames between frames: predict `collisions` at a fifth of the period that models were trained on.

    python benchmarks/video_superres.py --device cuda --out out/superres
    python benchmarks/video_superres.py --smoke --device cpu

Trains on whole frames only: two Neural SDEs on pixels (one call a frame; interpolated, for steps of Δt / 5),
layers with keypoints, and a Neural SDE on these keypoints (steps of Δt / 5). Then scores the frames between
predicted frames: PSNR, position, and whether contacts that no whole frame shows are reached and rebounded.
Writes scores.json and film strips of contacts. `--small --device cpu` is a smoke test.

Models that --out holds already are not trained again.

Predictions start from four true frames. `next`: each frame of a test video is predicted from the four before
it. `rollout`: twelve frames are predicted from the first four.
"""

import argparse
import functools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from video_keypoints import KeypointVideo
from video_superres_models import Trainer, describe_layers
from video_superres_scores import SUBSTEPS, Predict, TestSet, cross_fade, draw_contacts, print_table, score

from nsde_policy.video.base import stack_state
from nsde_policy.video.collisions import COLLISION_SEEDS
from nsde_policy.video.methods.neural_sde.model import NeuralSDEVideo
from nsde_policy.video.pixels import to_unit

ROLLOUT = 12
"""Frames of a long prediction."""
FINE_KEYPOINTS = "keypoints, steps of Δt / 5"
FADED_PIXELS, FINE_PIXELS = "pixels, one call a frame, cross-fade", "pixels, 5 steps of Δt / 5"


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
    trainer = Trainer(args)
    layers = trainer.train_layers()
    found = describe_layers(layers, trainer.size, args.device)
    print(found, flush=True)
    keypoints = trainer.train_motion(layers)
    predictors = {
        FINE_KEYPOINTS: predict_with_keypoints(keypoints, fine=True),
        "– cross-fade of its frames": predict_with_keypoints(keypoints, fine=False),
    }
    if not args.without_pixels:
        predictors[FADED_PIXELS] = predict_with_pixels(trainer.train_pixels("pixels"), fine=False)
        options = {"interpolation": "uniform", "random_noise": False, "noise": 0.1}
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
            "layers": asdict(trainer.layer_config), "motion": asdict(trainer.motion_config),
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
    shown = {
        label: predictors[label]
        for label in (FINE_KEYPOINTS, FADED_PIXELS, FINE_PIXELS)
        if label in predictors
    }
    draw_contacts(shown, test, contacts[:256], args.out)
    trainer.lap("figures")
    print(f"total: {sum(trainer.seconds.values()):.1f} s")


if __name__ == "__main__":
    main()
