"""Compare the visible share that a policy reports with errors of its features, on episodes it has not seen.

python benchmarks/visibility.py runs/pixels --demos pusht.zarr [--frames 300]

Each row hides parts of the frames in another way. A feature is right if it is within a quarter of a standard
deviation of the one of the whole frame. `AUC` is that of frames in which fewer than half of them are right.
"""

import argparse
from pathlib import Path

import numpy as np

from nsde_policy.core.spec import STATE_KEY
from nsde_policy.encoders.encoder_model import MIN_STD
from nsde_policy.eval.rollouts.disturbances import CameraCondition, CameraDisturbances
from nsde_policy.policy.policy import Policy
from nsde_policy.training.demos import load_training_demos, open_training_images
from nsde_policy.training.visibility import WRONG

CONDITIONS = {
    "nothing": CameraCondition(),
    "10 % square": CameraCondition(occlusion=0.1),
    "20 % square": CameraCondition(occlusion=0.2),
    "10 % yellow square": CameraCondition(occlusion=0.1, occluder="yellow"),
    "10 % disc": CameraCondition(occlusion=0.1, occluder="disc"),
    "10 % bar": CameraCondition(occlusion=0.1, occluder="bar"),
    "10 % stripes": CameraCondition(occlusion=0.1, occluder="stripes"),
    "brightness ± 20 %": CameraCondition(brightness=0.2),
    "shift 2 px": CameraCondition(shift=2),
}


def rank_area(score: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the area under the ROC curve of a score; NaN with one class alone."""
    order = score.argsort(kind="stable").argsort(kind="stable")
    positive, negative = int(is_positive.sum()), int((~is_positive).sum())
    if not positive or not negative:
        return float("nan")
    return float((order[is_positive].sum() - positive * (positive - 1) / 2) / (positive * negative))


def describe(predicted: np.ndarray, actual: np.ndarray) -> str:
    """Format one row of the table."""
    correlation = np.corrcoef(predicted, actual)[0, 1] if predicted.std() and actual.std() else float("nan")
    area = rank_area(-predicted, actual < 0.5)
    return f"{predicted.mean():9.2f} {actual.mean():9.2f} {correlation:12.2f} {area:9.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--demos", type=Path, required=True)
    parser.add_argument("--frames", type=int, default=300)
    args = parser.parse_args()
    policy = Policy.from_pretrained(args.run)
    config, held_out = policy.record.config.demos, policy.record.demos.held_out
    demos, images = load_training_demos(config, args.demos), open_training_images(config, args.demos)
    if policy.calibration.usually_visible is None:
        parser.error("the run does not report what is visible: train it with this version")
    # Without --validation, the episodes that the share was calibrated on: the encoder has seen them.
    episodes = held_out or range(4, len(demos), 5) or range(1)
    print("held-out episodes" if held_out else "episodes that only the encoder was trained on")
    rows = np.sort(np.random.default_rng(0).permutation(demos.find_rows(episodes))[: args.frames])
    names = [camera.name for camera in policy.spec.cameras]
    pictures = [np.stack([camera[int(row)] for row in rows]) for camera in images.values()]
    frames = dict(zip(names, pictures, strict=True))
    values = demos.obs[rows]
    clean = policy.encode({STATE_KEY: values, **frames})[:, policy.spec.plain_dim :]
    print(f"{'hidden by':20} {'reported':>9} {'right':>9} {'correlation':>12} {'AUC':>9}")
    both = []
    for title, condition in CONDITIONS.items():
        pairs = []
        for i, row in enumerate(rows):
            seen = CameraDisturbances(condition, int(row)).change({name: frames[name][i] for name in names})
            pairs.append(policy.encode_and_see({STATE_KEY: values[i], **seen}))
        found, visible = (np.array(part) for part in zip(*pairs, strict=True))
        error = np.abs(found[:, policy.spec.plain_dim :] - clean) / np.maximum(clean.std(0), MIN_STD)
        both.append((visible, (error < WRONG).mean(1)))
        print(f"{title:20} {describe(*both[-1])}", flush=True)
    predicted, actual = (np.concatenate(part) for part in zip(*both, strict=True))
    print(f"{'all':20} {describe(predicted, actual)}")


if __name__ == "__main__":
    main()
