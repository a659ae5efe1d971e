"""A made-up robot with two cameras of different sizes: squares move over a plain background."""

from pathlib import Path

import numpy as np

from tests.helpers.demo_stores import write_store

EPISODES, STEPS = 6, 12
SIZES = {"top": (32, 32), "wrist": (24, 40)}
"""Height and width of the frames of each camera."""


def draw_robot(robot: np.ndarray, block: np.ndarray, height: int, width: int) -> np.ndarray:
    """Draw robot and block, positions in [0, 1]², as squares; (height, width, 3) uint8."""
    frame = np.full((height, width, 3), 230, np.uint8)
    frame[:3, :3] = (40, 160, 40)  # a fixed mark
    for (x, y), colour in ((block, (90, 90, 110)), (robot, (30, 60, 220))):
        row, column = int(4 + y * (height - 12)), int(4 + x * (width - 12))
        frame[row : row + 5, column : column + 5] = colour
    return frame


def make_arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Make episodes in which the robot moves towards a block that rests at a random place."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list[np.ndarray]] = {"state": [], "action": [], "block": [], "top": [], "wrist": []}
    for _ in range(EPISODES):
        robot, block = rng.uniform(size=2), rng.uniform(size=2)
        for _ in range(STEPS):
            action = robot + 0.3 * (block - robot)
            rows["state"].append(robot)
            rows["action"].append(action)
            rows["block"].append(block)
            for name, (height, width) in SIZES.items():
                rows[name].append(draw_robot(robot, block, height, width))
            robot = action
    return {name: np.stack(values) for name, values in rows.items()}


def write_camera_store(path: Path, seed: int = 0) -> Path:
    """Write the demonstrations of the robot as a zarr store."""
    arrays = make_arrays(seed)
    data = {f"data/{name}": arrays[name].astype(np.float32) for name in ("state", "action", "block")}
    data |= {f"data/{name}": arrays[name] for name in SIZES}
    ends = np.arange(1, EPISODES + 1) * STEPS
    unused = {"data/keypoint": None, "data/img": None}
    return write_store(path, {**unused, **data, "meta/episode_ends": ends}, attributes={"rate_hz": 10.0})
