"""The camera of a policy that observes pixels: its picture of the table, and keypoints to draw over it."""

import base64

import numpy as np

from nsde_policy.envs.live import LiveTable
from nsde_policy.eval.render.keypoints import find_keypoint_futures
from nsde_policy.eval.render.pictures import encode_png
from nsde_policy.planner.interface import PolicySpec


def describe_camera(
    spec: PolicySpec, table: LiveTable, state: np.ndarray, obs: np.ndarray
) -> dict[str, object] | None:
    """Return the camera's picture and its keypoints for JSON; None for a policy without a camera.

    Args:
        spec: Sizes of the policy.
        table: What the policy plays on.
        state: State of the table.
        obs: Observations of sampled futures, the present first, (steps + 1, futures, obs_dim).

    Returns:
        "png" in base64, its "width" and "height", and for each keypoint, in thousandths of the frame, x and y
        by turns: "paths", the mean of the futures, "ends" of the futures, and "spread", the half axes of an
        ellipse around them.
    """
    if not spec.cameras:
        return None
    camera = spec.cameras[0]
    found = find_keypoint_futures(obs, spec)
    png = base64.b64encode(encode_png(table.draw_camera(state, camera.width, camera.height))).decode()
    picture = {"name": camera.name, "width": camera.width, "height": camera.height, "png": png}
    if found is None or not all(np.isfinite(values).all() for values in vars(found).values()):
        return {**picture, "paths": [], "ends": [], "spread": []}
    return {
        **picture,
        "paths": _to_thousandths(found.mean.swapaxes(0, 1)),
        "ends": _to_thousandths(found.ends.swapaxes(0, 1)),
        "spread": _to_thousandths(found.spread),
    }


def _to_thousandths(points: np.ndarray) -> list[list[int]]:
    """Return one row of integers per keypoint, from points (keypoints, …, 2)."""
    whole = np.rint(1000 * np.clip(points, -10, 10)).astype(int)
    rows: list[list[int]] = whole.reshape(len(points), -1).tolist()
    return rows
