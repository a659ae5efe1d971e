"""The camera of a policy that observes pixels: its picture of the table, and keypoints to draw over it."""

import base64
from functools import lru_cache
from typing import Any, cast

import numpy as np

from nsde_policy.core.spec import STATE_KEY, CameraSpec
from nsde_policy.errors import ConfigError
from nsde_policy.eval.render.keypoints import find_keypoint_futures
from nsde_policy.eval.render.pictures import encode_png
from nsde_policy.planner.interface import PolicySpec
from nsde_policy.tasks.live_table import CameraTable, LiveTable


def check_table_policy(spec: PolicySpec, name: str, table: LiveTable) -> None:
    """Raise `ConfigError` if a policy does not have the sizes of those that can play on a table."""
    found = spec.plain_dim, len(spec.cameras), spec.act_dim
    if found not in table.sizes:
        expected = " or ".join("{}, {} and {}".format(*sizes) for sizes in table.sizes)
        raise ConfigError(
            f"{name} has {found[0]} observations, {found[1]} cameras and {found[2]} actions; policies that "
            f"can play on this table have {expected}"
        )


def draw_camera_frame(table: LiveTable, state: np.ndarray, camera: CameraSpec) -> np.ndarray:
    """Draw what a camera sees of a state, as the environment does, (height, width, 3) uint8."""
    return _draw_cached(cast(Any, table), tuple(state.tolist()), camera)


@lru_cache(maxsize=2)
def _draw_cached(table: object, state: tuple[float, ...], camera: CameraSpec) -> np.ndarray:
    """Draw a frame; the newest are cached, because they are encoded first and shown later."""
    return cast(CameraTable, table).draw_camera(np.array(state), camera.width, camera.height)


def observe_table(table: LiveTable, state: np.ndarray, camera: CameraSpec) -> dict[str, np.ndarray]:
    """Return what a policy with a camera observes of a state: measured values and a frame, by name."""
    measured = cast(CameraTable, table).measure(state)
    return {STATE_KEY: measured, camera.name: draw_camera_frame(table, state, camera)}


def describe_camera(
    spec: PolicySpec, table: LiveTable, state: np.ndarray, obs: np.ndarray
) -> dict[str, Any] | None:
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
    png = base64.b64encode(encode_png(draw_camera_frame(table, state, camera))).decode()
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
