"""Recorded camera frames of scored episodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nsde_policy.core.spec import STATE_KEY
from nsde_policy.data import Demonstrations, LazyFrames
from nsde_policy.errors import DemoError
from nsde_policy.inference.policy import Policy
from nsde_policy.run_config import DemoConfig
from nsde_policy.training.demos import open_training_images
from nsde_policy.training.frames import READ_BLOCK


def open_recorded_images(
    policy: Policy, settings: DemoConfig, path: Path, frames: int
) -> tuple[LazyFrames, ...]:
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
    return tuple(images.values())


def add_features(
    demos: Demonstrations, cameras: Sequence[LazyFrames], first_frames: Sequence[int], policy: Policy
) -> Demonstrations:
    """Return the demonstrations with the features of their frames, which are decoded in blocks.

    `first_frames` is where each episode begins in the frames of the cameras.
    """
    features = np.zeros((len(demos.obs), policy.spec.image_features), np.float32)
    spans = list(zip(demos.starts, demos.episode_ends, first_frames, strict=True))
    for start, end, first in tqdm(spans, "encoding", unit="episode", leave=False, disable=None):
        for rows in np.split(np.arange(start, end), range(READ_BLOCK, end - start, READ_BLOCK)):
            at = int(first + rows[0] - start)
            given = {
                camera.name: frames[at : at + len(rows)]
                for camera, frames in zip(policy.spec.cameras, cameras, strict=True)
            }
            encoded = policy.encode({STATE_KEY: demos.obs[rows], **given})
            features[rows] = encoded[:, policy.spec.plain_dim :]
    return replace(
        demos, obs=np.concatenate([demos.obs, features], axis=1), image_features=policy.spec.image_features
    )
