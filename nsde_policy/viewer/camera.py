"""The camera of a policy that observes pixels: its picture of the table, and keypoints to draw over it."""

import base64
from functools import lru_cache
from typing import Any

import numpy as np

from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.base import STATE_KEY
from nsde_policy.envs.pusht.drawing import benchmark_frame
from nsde_policy.errors import ConfigError
from nsde_policy.eval.render.keypoints import find_keypoint_futures
from nsde_policy.eval.render.pictures import encode_png
from nsde_policy.inference.spec import PolicySpec

_TABLE_SIZES = ((5, 0, 2), (2, 1, 2))
"""Measured values, cameras and actions of policies for Push-T: from its state, and from pixels."""


def check_table_policy(spec: PolicySpec, name: str) -> None:
    """Raise `ConfigError` if a policy does not observe the table of Push-T, or a picture of it."""
    found = spec.plain_dim, len(spec.cameras), spec.act_dim
    if found not in _TABLE_SIZES:
        raise ConfigError(
            f"{name} has {found[0]} observations, {found[1]} cameras and {found[2]} actions; expected 5, 0 "
            "and 2, a policy for Push-T from its state, or 2, 1 and 2, one from pixels"
        )


def draw_camera_frame(table: np.ndarray, camera: CameraSpec) -> np.ndarray:
    """Draw what a camera sees of the table (5,), as the environment does, (height, width, 3) uint8."""
    return _draw_cached(tuple(table.tolist()), camera)


@lru_cache(maxsize=2)
def _draw_cached(table: tuple[float, ...], camera: CameraSpec) -> np.ndarray:
    """Draw a frame; the newest are cached, because they are encoded first and shown later."""
    return benchmark_frame(table[:2], table[2:], camera.width, camera.height)


def observe_table(table: np.ndarray, camera: CameraSpec) -> dict[str, np.ndarray]:
    """Return what a policy with a camera observes of the table (5,): the agent and a frame, by name."""
    return {STATE_KEY: table[:2], camera.name: draw_camera_frame(table, camera)}


def describe_camera(spec: PolicySpec, table: np.ndarray, obs: np.ndarray) -> dict[str, Any] | None:
    """Return the camera's picture and its keypoints for JSON; None for a policy without a camera.

    Args:
        spec: Sizes of the policy.
        table: Agent and block, (5,).
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
    png = base64.b64encode(encode_png(draw_camera_frame(table, camera))).decode()
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
