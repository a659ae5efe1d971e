"""Recorded camera frames of scored episodes, encoded as far as the scores need them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from nsde_policy.core.spec import STATE_KEY
from nsde_policy.data import Demonstrations, LazyFrames
from nsde_policy.data.frames import BLOCK_BYTES
from nsde_policy.errors import DemoError
from nsde_policy.inference.policy import Policy
from nsde_policy.run_config import DemoConfig
from nsde_policy.training.demos import open_training_images
from nsde_policy.training.frames import READ_BLOCK

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RecordedImages:
    """Frames of all cameras of a store, read on demand."""

    cameras: tuple[LazyFrames, ...]
    """Frames of each camera, one per control period of all episodes."""
    rows: Rows
    """Position in them of each scored control period."""

    def select(self, chosen: Rows) -> "RecordedImages":
        """Return the frames of some of the scored control periods, in the given order."""
        return replace(self, rows=self.rows[chosen])


def open_recorded_images(policy: Policy, settings: DemoConfig, path: Path, frames: int) -> RecordedImages:
    """Open the cameras of a policy in a store; nothing is decoded yet.

    Raises:
        DemoError: If a camera is missing, or its frames have another size or number.
    """
    images = open_training_images(settings, path)
    for (name, found), camera in zip(images.items(), policy.spec.cameras, strict=True):
        if found.shape[1:] != camera.shape or len(found) < frames:
            raise DemoError(
                f"data/{name} of {path} has shape {found.shape}, expected {(frames, *camera.shape)} as in "
                "training: give --demos a store of the same cameras"
            )
    return RecordedImages(tuple(images.values()), np.arange(frames))


def find_needed_rows(demos: Demonstrations, scored: Mask, history: int) -> Mask:
    """Return which control periods a score of some of them needs, (frames,): histories and successors too."""
    rows = np.flatnonzero(scored)
    episode = np.searchsorted(demos.episode_ends, rows, side="right")
    around = rows[:, None] + np.arange(1 - history, 2)
    first, last = demos.starts[episode][:, None], demos.episode_ends[episode][:, None] - 1
    needed = np.zeros_like(scored)
    needed[np.clip(around, first, last)] = True
    return needed


def add_features(
    demos: Demonstrations, images: RecordedImages, policy: Policy, needed: Mask
) -> Demonstrations:
    """Return the demonstrations with the features of their frames, or zeros where none are needed.

    Frames are decoded block by block and encoded in batches: memory does not grow with their number.
    """
    features = np.zeros((len(demos.obs), policy.spec.image_features), np.float32)
    frame_bytes = max(int(np.prod(camera.shape[1:])) for camera in images.cameras)
    block = images.rows // max(1, BLOCK_BYTES // frame_bytes)
    with tqdm(total=int(needed.sum()), desc="encoding", unit="frame", leave=False, disable=None) as bar:
        for number in np.unique(block[needed]):
            rows = np.flatnonzero(needed & (block == number))
            start, end = images.rows[rows].min(), images.rows[rows].max() + 1
            decoded = [camera[int(start) : int(end)] for camera in images.cameras]
            for batch in np.split(rows, range(READ_BLOCK, len(rows), READ_BLOCK)):
                given = {
                    camera.name: frames[images.rows[batch] - start]
                    for camera, frames in zip(policy.spec.cameras, decoded, strict=True)
                }
                encoded = policy.encode({STATE_KEY: demos.obs[batch], **given})
                features[batch] = encoded[:, policy.spec.plain_dim :]
                bar.update(len(batch))
    return replace(
        demos, obs=np.concatenate([demos.obs, features], axis=1), image_features=policy.spec.image_features
    )
