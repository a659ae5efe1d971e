"""Measure how well a policy of Meta-World sees from its camera where the object is.

    nsde-policy train --demos push.zarr --obs pixels --out runs/push
    python benchmarks/seen_places.py runs/push          # needs the extra `metaworld`, and EGL

Ridge regression predicts the place of the object from the features of a frame and the hand. It is fitted on
the demonstrations of the run, and its errors are those in all frames of episodes that the run did not see.
Regression from the hand alone shows what can be known without looking.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nsde_policy import Policy, load_demonstrations
from nsde_policy.data import Demonstrations, open_images
from nsde_policy.errors import ConfigError, NsdePolicyError
from nsde_policy.eval.demonstrator import CollectConfig, collect_demonstrations
from nsde_policy.tasks import get_task
from nsde_policy.tasks.metaworld import HAND

FIRST_SEED = 400_000
"""First seed of the unseen episodes; demonstrations have seeds from 300000 on."""
OBJECT = slice(4, 7)
"""Columns of the full state with the place of the object, in metres."""
PENALTY, BATCH = 1.0, 256
Floats = npt.NDArray[np.float64]


class Frames(NamedTuple):
    """What a policy sees in all frames of some episodes, and the truth."""

    seen: Floats
    """The hand, and the features of the camera's frame, (frames, columns)."""
    places: Floats
    """Places of the object, (frames, 3)."""


def collect_unseen(policy: Policy, episodes: int, folder: Path) -> Path:
    """Collect episodes of the expert with other seeds, and return their store; an old one is completed."""
    task = get_task(policy.record.task)
    env_kwargs = task.training.without_observations(policy.record.env_kwargs)
    config = CollectConfig(task.name, env_kwargs, episodes, FIRST_SEED, only_success=True, obs="pixels")
    store = folder / f"{task.name.partition(':')[2]}.zarr"
    collect_demonstrations("experts:MetaWorldScript", store, config)
    return store


def encode_episodes(policy: Policy, store: Path, demos: Demonstrations) -> Frames:
    """Encode the frames of the first episodes of a store."""
    (key,), (camera,) = policy.record.config.demos.images, policy.spec.cameras
    pictures, seen = open_images(store, key=key), []
    for start in range(0, len(demos.obs), BATCH):
        rows = slice(start, min(start + BATCH, len(demos.obs)))
        seen.append(policy.encode({"observation.state": demos.obs[rows, HAND], camera.name: pictures[rows]}))
    return Frames(np.concatenate(seen), demos.obs[:, OBJECT].astype(float))


def measure_errors(fitted: Frames, unseen: Frames, columns: slice) -> Floats:
    """Fit ridge regression to some columns; return its errors in unseen frames, in cm, (frames,)."""
    mean, std = fitted.seen.mean(0), np.maximum(fitted.seen.std(0), 1e-6)
    inputs, others = (((frames.seen - mean) / std)[:, columns] for frames in (fitted, unseen))
    centre = fitted.places.mean(0)
    gram = inputs.T @ inputs + PENALTY * np.eye(inputs.shape[1])
    predicted = centre + others @ np.linalg.solve(gram, inputs.T @ (fitted.places - centre))
    return np.asarray(100 * np.linalg.norm(predicted - unseen.places, axis=1))


def measure_run(run: Path, episodes: int, folder: Path) -> None:
    """Print the errors of a run."""
    policy = Policy.from_pretrained(run)
    record, source = policy.record, Path(policy.record.demos.source)
    if not record.task.startswith("metaworld:") or not record.cameras:
        raise ConfigError(f"{run} is a run of {record.task}: give one of metaworld:NAME, --obs pixels")
    fitted = encode_episodes(policy, source, load_demonstrations(source).take(record.demos.episodes))
    store = collect_unseen(policy, episodes, folder)
    unseen = encode_episodes(policy, store, load_demonstrations(store))
    for title, columns in {"frame and hand": slice(None), "hand alone": HAND}.items():
        median, high = np.quantile(measure_errors(fitted, unseen, columns), [0.5, 0.9])
        print(f"{title}: median {median:.2f} cm, 90 % of {len(unseen.seen)} frames below {high:.2f} cm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="run that was trained with --obs pixels")
    parser.add_argument("--episodes", type=int, default=10, help="unseen episodes")
    parser.add_argument("--out", type=Path, default=Path("out/seen_places"), help="folder of their stores")
    args = parser.parse_args()
    try:
        measure_run(args.run, args.episodes, args.out)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
