"""Made-up robots with two cameras of different sizes: squares move over a plain background.

One moves in the plane, the other is an arm of seven joints whose gripper the cameras see.
"""

from pathlib import Path
from typing import Any

import numpy as np

from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import train_run
from tests.helpers.demo_stores import write_store

EPISODES, STEPS, JOINTS = 6, 12, 7
SIZES = {"top": (32, 32), "wrist": (24, 40)}
"""Height and width of the frames of each camera."""
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"


def draw_robot(robot: np.ndarray, block: np.ndarray, height: int, width: int) -> np.ndarray:
    """Draw robot and block, positions in [0, 1]², as squares; (height, width, 3) uint8."""
    frame = np.full((height, width, 3), 230, np.uint8)
    frame[:3, :3] = (40, 160, 40)  # a fixed mark
    for (x, y), colour in ((block, (90, 90, 110)), (robot, (30, 60, 220))):
        row, column = int(4 + y * (height - 12)), int(4 + x * (width - 12))
        frame[row : row + 5, column : column + 5] = colour
    return frame


def find_gripper(joints: np.ndarray) -> np.ndarray:
    """Return the place of the gripper in [0, 1]² for the angles of a planar arm."""
    angles = np.cumsum(joints)
    place: np.ndarray = 0.5 + np.stack([np.cos(angles), np.sin(angles)]).sum(1) / (2 * len(joints))
    return place


def make_arrays(seed: int = 0, *, arm: bool = False) -> dict[str, np.ndarray]:
    """Make episodes in which a robot, or the gripper of an arm, moves to a block at a random place."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[np.ndarray]] = {"state": [], "action": [], "block": [], "top": [], "wrist": []}
    for _ in range(EPISODES):
        state, goal = (rng.uniform(-1, 1, JOINTS) if arm else rng.uniform(size=2) for _ in range(2))
        block = find_gripper(goal) if arm else goal
        for _ in range(STEPS):
            action = state + 0.3 * (goal - state)
            rows["state"].append(state)
            rows["action"].append(action)
            rows["block"].append(block)
            for name, (height, width) in SIZES.items():
                robot = find_gripper(state) if arm else state
                rows[name].append(draw_robot(robot, block, height, width))
            state = action
    return {name: np.stack(values) for name, values in rows.items()}


def write_camera_store(path: Path, seed: int = 0, *, arm: bool = False) -> Path:
    """Write the demonstrations of the robot, or of the arm, as a zarr store."""
    arrays = make_arrays(seed, arm=arm)
    data = {f"data/{name}": arrays[name].astype(np.float32) for name in ("state", "action", "block")}
    data |= {f"data/{name}": arrays[name] for name in SIZES}
    ends = np.arange(1, EPISODES + 1) * STEPS
    unused = {"data/keypoint": None, "data/img": None}
    return write_store(path, {**unused, **data, "meta/episode_ends": ends}, attributes={"rate_hz": 10.0})


def observe(frame: int = 0, *, arm: bool = False) -> dict[str, np.ndarray]:
    """Return the observations of a policy at one frame of the demonstrations."""
    arrays = make_arrays(arm=arm)
    return {STATE: arrays["state"][frame], TOP: arrays["top"][frame], WRIST: arrays["wrist"][frame]}


def train_camera_run(
    store: Path,
    path: Path,
    config: RunConfig,
    **options: Any,
) -> RunDirectory:
    """Train on a store of the robot; `options` are fields of `TrainOptions`."""
    return train_run(store, config, path, options=TrainOptions(**options))
