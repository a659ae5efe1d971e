"""Simulated arm for the examples: six joints and a gripper carry a block, and two cameras see it.

    python examples/simulated_arm.py arm_demos --episodes 20 --cameras top wrist     # LeRobot v3.0
    python examples/simulated_arm.py arm.zarr --episodes 20 --cameras top wrist      # zarr

The block lies somewhere on the table. An expert that knows its place closes the gripper there, carries it to
the goal and lets go. Observations are joint angles and the opening of the gripper, so that a policy has to
find the block in the pictures, unless its place is recorded too (`--cameras` without names).
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.data import DemoWriter, Episode
from nsde_policy.data.readers import open_source
from nsde_policy.data.readers.lerobot.writer import write_lerobot
from nsde_policy.errors import NsdePolicyError
from nsde_policy.policy.base_policy import BasePolicy

JOINTS, RATE_HZ, SIDE = 6, 20.0, 96
LAG = 0.7
"""Share of the way to a command that a joint moves in one period."""
LINKS = np.array([0.34, 0.3, 0.2, 0.14, 0.1, 0.08])
HOME = np.array([2.2, -1.0, -0.7, -0.5, -0.3, -0.2])
GOAL = np.array([-0.45, 0.45])
REACH = 0.04
"""Distance within which the gripper takes the block, and a carried block counts as delivered."""
NAMES = [f"joint_{i}" for i in range(1, JOINTS + 1)] + ["gripper"]
EXPERT_SPEED = 0.012
"""Largest movement of the gripper per period."""
TREMOR = 0.004
"""Standard deviation of the noise on the expert's commands, radians."""
MAX_SECONDS = 15.0
"""Time in which the block has to be delivered."""


class SimulatedArm:
    """Position-controlled arm on a table that reaches from -1 to 1; joints follow commands with a lag.

    Frames are 96 × 96, unless `sizes` gives another width and height for a camera. `noise` multiplies the
    noise of the expert.
    """

    rate_hz = RATE_HZ
    """Commands per second."""
    home, goal = HOME, GOAL
    """Joint angles at which an episode begins, and the place to which the block is carried."""
    low, high = np.array([0.3, -0.4]), np.array([0.8, 0.4])
    """Corners of the area in which the block lies at first."""
    colour = (200, 60, 40)
    """Colour of the block."""

    def __init__(
        self, seed: int = 0, sizes: Mapping[str, tuple[int, int]] | None = None, noise: float = 1.0
    ) -> None:
        self.sizes, self.noise = sizes or {}, noise
        self.reset(seed=seed)

    def reset(self, *, seed: int) -> None:
        """Put the arm near its home position, and the block at a random place."""
        rng = np.random.default_rng(seed)
        self.joints = self.home + rng.uniform(-0.1, 0.1, JOINTS)
        self.block = rng.uniform(self.low, self.high)
        self.opening, self.holds = 1.0, False
        self.rng = rng

    def state(self) -> np.ndarray:
        """Return joint angles, radians, and the opening of the gripper, 0 to 1."""
        return np.append(self.joints, self.opening).astype(np.float32)

    def observe(self, *cameras: str) -> dict[str, np.ndarray]:
        """Return the state and a frame of each camera by name; without cameras, the state holds the block."""
        if not cameras:
            return {"observation.state": np.append(self.state(), self.block)}
        frames = {f"observation.images.{name}": self.read_frame(name) for name in cameras}
        return {"observation.state": self.state(), **frames}

    def send(self, command: np.ndarray) -> None:
        """Move for one period towards joint positions; the last number closes the gripper (1) or opens it."""
        self.joints = self.joints + LAG * (command[:JOINTS] - self.joints)
        self.opening += 0.6 * (1 - command[JOINTS] - self.opening)
        place = find_points(self.joints)[-1]
        near = np.linalg.norm(place - self.block) < REACH
        self.holds = self.opening < 0.5 and (self.holds or bool(near))
        if self.holds:
            self.block = place

    def find_expert_command(self) -> np.ndarray:
        """Return the command of an expert that knows where the block is."""
        carried = self.holds and np.linalg.norm(self.block - self.goal) < REACH / 2
        near = np.linalg.norm(find_points(self.joints)[-1] - self.block) < REACH / 2
        target = self.goal if self.holds else self.block
        return find_command(self, target, closed=(self.holds or bool(near)) and not carried)

    @property
    def delivered(self) -> bool:
        """Whether the block lies at the goal and was let go."""
        return not self.holds and bool(np.linalg.norm(self.block - self.goal) < 2 * REACH)

    def read_frame(self, camera: str) -> np.ndarray:
        """Return the newest frame of a camera."""
        return self.look(camera)

    def look(self, camera: str) -> np.ndarray:
        """Draw a frame, (height, width, 3) uint8: `top` sees the table, `wrist` what is near the gripper."""
        points = find_points(self.joints)
        centre, reach = (np.zeros(2), 1.0) if camera == "top" else (points[-1], 0.4)
        width, height = self.sizes.get(camera, (SIDE, SIDE))
        right, down = (
            reach * ((np.arange(pixels, dtype=np.float32) + 0.5) * 2 - pixels) / width
            for pixels in (width, height)
        )
        x, y = centre[0] + right[None], centre[1] - down[:, None]
        frame = np.full((height, width, 3), 225, np.uint8)
        frame[np.maximum(abs(x), abs(y)) > 0.95] = 120
        frame[abs(np.hypot(x - self.goal[0], y - self.goal[1]) - 0.09) < 0.015] = (40, 160, 40)
        frame[np.maximum(abs(x - self.block[0]), abs(y - self.block[1])) < 0.05] = self.colour
        for (start_x, start_y), (way_x, way_y) in zip(points, np.diff(points, axis=0), strict=False):
            along = ((x - start_x) * way_x + (y - start_y) * way_y) / (way_x**2 + way_y**2)
            along = along.clip(0, 1)
            frame[np.hypot(x - start_x - along * way_x, y - start_y - along * way_y) < 0.025] = (40, 60, 110)
        ring = np.hypot(x - points[-1, 0], y - points[-1, 1]) - 0.03 - 0.03 * self.opening
        frame[abs(ring) < 0.012] = (20, 20, 20)
        return frame


def find_points(joints: np.ndarray) -> np.ndarray:
    """Return the places of all joints and of the gripper, (7, 2)."""
    angles = np.cumsum(joints)
    steps = LINKS[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])


def find_turn(joints: np.ndarray, way: np.ndarray) -> np.ndarray:
    """Return the change of the joints that moves the gripper a short way."""
    points = find_points(joints)
    arms = points[-1] - points[:-1]
    jacobian = np.stack([-arms[:, 1], arms[:, 0]])
    turn: np.ndarray = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 1e-3 * np.eye(2), way)
    return turn


def find_command(arm: SimulatedArm, target: np.ndarray, closed: bool) -> np.ndarray:
    """Return the command that moves the gripper a step towards a target."""
    way = target - find_points(arm.joints)[-1]
    way = way * min(1.0, EXPERT_SPEED / max(np.linalg.norm(way), 1e-9))
    tremor = arm.rng.normal(0, arm.noise * TREMOR, JOINTS)
    return np.append(arm.joints + find_turn(arm.joints, way) / LAG + tremor, float(closed)).astype(np.float32)


def play_expert(arm: SimulatedArm, *cameras: str) -> tuple[Episode, dict[str, np.ndarray]]:
    """Carry the block to the goal; return observations and actions, and the block and frames as extras."""
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("obs", "act", "block", *cameras)}
    while not arm.delivered and len(rows["obs"]) < MAX_SECONDS * arm.rate_hz:
        command = arm.find_expert_command()
        rows["obs"].append(arm.state())
        rows["act"].append(command)
        rows["block"].append(arm.block.astype(np.float32))
        for name in cameras:
            rows[name].append(arm.read_frame(name))
        arm.send(command)
    found = {name: np.stack(values) for name, values in rows.items()}
    return Episode(found.pop("obs"), found.pop("act")), found


def record(
    path: Path,
    *cameras: str,
    episodes: int = 20,
    seed: int = 0,
    make_arm: Callable[[int], SimulatedArm] = SimulatedArm,
) -> Path:
    """Write episodes of the expert; without cameras, the place of the block is part of the observation."""
    columns = {"state": [*NAMES, *(() if cameras else ("block_x", "block_y"))], "action": NAMES}
    rate_hz = make_arm(seed).rate_hz
    with DemoWriter(path, rate_hz=rate_hz, attributes={"columns": columns}) as writer:
        for k in range(episodes):
            episode, extras = play_expert(make_arm(seed + k), *cameras)
            block = extras.pop("block")
            obs = episode.obs if cameras else np.concatenate([episode.obs, block], axis=1)
            writer.append(Episode(obs, episode.act), extras)
    return path


def record_lerobot(path: Path, *cameras: str, episodes: int = 20) -> Path:
    """Write episodes of the expert as a LeRobot data set."""
    with tempfile.TemporaryDirectory() as folder:
        store = record(Path(folder) / "arm.zarr", *cameras, episodes=episodes)
        with open_source(store) as source:
            write_lerobot(source, path)
    return path


def parse_arguments(text: str | None) -> argparse.Namespace:
    """Parse the command line of an example that records, trains and drives."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for demonstrations and the run")
    parser.add_argument("--episodes", type=int, default=20, help="episodes to record")
    parser.add_argument("--steps", type=int, help="steps of training; default: by the demonstrations")
    parser.add_argument("--trials", type=int, default=5, help="times that the policy drives the robot")
    return parser.parse_args()


def drive(policy: BasePolicy, arm: SimulatedArm, *cameras: str, seconds: float = MAX_SECONDS) -> bool:
    """Let a policy drive the arm in simulated time; return whether the block was delivered.

    With a real robot: `with policy.session() as session: for tick in session.ticks(): …`
    """
    now = 0.0
    config = SessionConfig(rate_hz=arm.rate_hz)
    with Session(policy, config, calibration=policy.calibration, clock=lambda: now) as session:
        while now < seconds and not arm.delivered:
            arm.send(session.step(arm.observe(*cameras), now))
            now += 1 / arm.rate_hz
    return arm.delivered


def main() -> None:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="NAME.zarr, or the folder of a LeRobot data set")
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes")
    parser.add_argument("--cameras", nargs="*", default=["top", "wrist"], help="top, wrist or none")
    args = parser.parse_args()
    write = record if args.out.suffix == ".zarr" else record_lerobot
    try:
        print(f"wrote {write(args.out, *args.cameras, episodes=args.episodes)}")
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
