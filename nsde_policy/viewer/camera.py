"""The camera of a policy that observes pixels: its picture of the table, and keypoints to draw over it."""

import base64

import numpy as np

from nsde_policy.encoders import get_encoder
from nsde_policy.eval.render.pictures import encode_picture
from nsde_policy.interface.planner import PolicySpec


def describe_camera(spec: PolicySpec, frame: np.ndarray | None, obs: np.ndarray) -> dict[str, object] | None:
    """Return the camera's picture and its keypoints for JSON; None for a policy without a camera.

    Args:
        spec: Sizes of the policy.
        frame: What the policy sees, (height, width, 3) uint8.
        obs: Observations of sampled futures, the present first, (steps + 1, futures, obs_dim).

    Returns:
        "png" in base64, its "width" and "height", and for each keypoint, in thousandths of the frame, x and y
        interleaved: "paths", the mean of the futures, and "ends" of the futures.
    """
    if frame is None:
        return None
    camera, points = spec.cameras[0], _find_keypoints(obs, spec)
    return {
        "name": camera.name,
        "width": camera.width,
        "height": camera.height,
        "png": base64.b64encode(encode_picture(frame)).decode(),
        "paths": _to_thousandths(points.mean(1).swapaxes(0, 1)),
        "ends": _to_thousandths(points[-1].swapaxes(0, 1)),
    }


def _find_keypoints(obs: np.ndarray, spec: PolicySpec) -> np.ndarray:
    """Return the keypoints of the first camera, (steps + 1, futures, keypoints, 2).

    Positions are x and y in its frame, from 0 to 1. There are none if the features are not positions.
    """
    has_positions = get_encoder(spec.encoder).features_are_positions
    count = spec.image_features // len(spec.cameras) if has_positions else 0
    points: np.ndarray = (obs[..., spec.plain_dim : spec.plain_dim + count] + 1) / 2
    return points.reshape(*obs.shape[:2], count // 2, 2)


def _to_thousandths(points: np.ndarray) -> list[list[int]]:
    """Return one row of integers per keypoint, from points (keypoints, …, 2)."""
    whole = np.rint(1000 * np.clip(points, -10, 10)).astype(int)
    return [keypoint.flatten().tolist() for keypoint in whole]
