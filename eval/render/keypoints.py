"""What a policy with cameras sees: its keypoints, where it expects them to go, and how sure it is."""

from dataclasses import dataclass

import numpy as np

from nsde_policy.encoders import get_encoder
from nsde_policy.planner.interface import PolicySpec

SPREAD = 2.0
"""Standard deviations that the ellipse around a keypoint's last expected position reaches."""


@dataclass(frozen=True)
class KeypointFutures:
    """Keypoints of one camera in sampled futures; positions are x and y in its frame, from 0 to 1."""

    mean: np.ndarray
    """Mean over the futures, the present first, (steps + 1, keypoints, 2)."""
    ends: np.ndarray
    """Where each future ends, (futures, keypoints, 2)."""
    spread: np.ndarray
    """`SPREAD` standard deviations of these ends, (keypoints, 2)."""


def find_keypoint_futures(obs: np.ndarray, spec: PolicySpec, camera: int = 0) -> KeypointFutures | None:
    """Return the keypoints of a camera in sampled futures; None if the features are not positions.

    Args:
        obs: Observations of the futures, (steps + 1, futures, obs_dim).
        spec: Sizes of the policy.
        camera: Index of the camera.
    """
    if not get_encoder(spec.encoder).features_are_positions:
        return None
    count = spec.image_features // len(spec.cameras)
    first = spec.plain_dim + camera * count
    points = (obs[..., first : first + count] + 1) / 2
    points = points.reshape(*points.shape[:2], -1, 2)
    return KeypointFutures(points.mean(1), points[-1], SPREAD * points[-1].std(0))
