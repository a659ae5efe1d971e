"""Simulated arm that a person teleoperates: degrees, a continuous gripper, 30 Hz, cameras at 15 Hz.

    python examples/teleoperated_arm.py arm.zarr --episodes 20

The task is that of simulated_arm.py, at other places. The person moves a leader arm, whose joint angles are
the commands. Each episode has its own speed. The hand trembles and pauses now and then. Sometimes the gripper
closes next to the block, and the person opens it and tries again. The cameras take a frame at every second
command; in between it repeats.
"""

import argparse
from pathlib import Path

import numpy as np
from simulated_arm import HOME, JOINTS, REACH, SimulatedArm, find_points, find_turn, record

from nsde_policy.errors import NsdePolicyError

PERIODS_PER_FRAME = 2
LAG = 0.5
"""Share of the way to a command that a joint moves in one period."""
FINGER_SPEED = 0.12
"""Largest change of the gripper's opening per period."""
BLOCK_WIDTH = 0.45
"""Opening at which the fingers touch the block and stop."""
OPEN, CLOSED = 100.0, 20.0
"""Commands of the person to the gripper, percent."""
SQUEEZE = 8.0
"""Change of the person's command to the gripper per period, percent."""
SPEED, SLOWDOWN, INERTIA = 0.012, 0.12, 0.25
"""Speed of the hand per period, the share of a short way that it moves instead, and the share of the missing
velocity that it gains."""
TREMOR, CORRELATION = 0.0012, 0.9
"""Standard deviation of the noise on the hand's movement per period, and its correlation with the last."""
NEAR_MISSES, MISSED_BY = 0.3, 1.5 * REACH
"""Probability of a near miss in an episode, and the distance from the block at which the gripper closes."""
PAUSES, PAUSE_PERIODS = 0.012, (8, 30)
"""Probability that a pause begins in a period, and its shortest and longest duration."""


class TeleoperatedArm(SimulatedArm):
    """The simulated arm at 30 Hz, in degrees and percent; its cameras take 15 frames per second."""

    rate_hz = 30.0
    home, goal = -HOME, np.array([-0.35, -0.55])
    low, high = np.array([0.2, -0.25]), np.array([0.75, 0.5])
    colour = (225, 150, 20)

    def reset(self, *, seed: int) -> None:
        """Put the arm near its home position, and the block at a random place, and change the person."""
        super().reset(seed=seed)
        self.frames: dict[str, np.ndarray] = {}
        self.periods = 0
        self.person = Person(self.joints, self.noise, self.rng)

    def state(self) -> np.ndarray:
        """Return joint angles, degrees, and the opening of the gripper, percent."""
        return np.append(np.degrees(self.joints), 100 * self.opening).astype(np.float32)

    def send(self, command: np.ndarray) -> None:
        """Move for one period towards joint angles, degrees, and an opening of the gripper, percent."""
        self.joints = self.joints + LAG * (np.radians(command[:JOINTS]) - self.joints)
        place = find_points(self.joints)[-1]
        between = self.holds or (self.opening > BLOCK_WIDTH and np.linalg.norm(place - self.block) < REACH)
        way = np.clip(float(command[JOINTS]) / 100 - self.opening, -FINGER_SPEED, FINGER_SPEED)
        self.opening = float(np.clip(self.opening + way, BLOCK_WIDTH if between else 0.0, 1.0))
        self.holds = bool(between) and self.opening == BLOCK_WIDTH
        if self.holds:
            self.block = place
        self.periods += 1
        if self.periods % PERIODS_PER_FRAME == 0:
            self.frames.clear()

    def read_frame(self, camera: str) -> np.ndarray:
        """Return the newest frame of a camera, which may be one period old."""
        if camera not in self.frames:
            self.frames[camera] = self.look(camera)
        return self.frames[camera]

    def find_expert_command(self) -> np.ndarray:
        """Return the command of the person."""
        return self.person.move(self)


class Person:
    """Moves a leader arm, whose joint angles are the commands."""

    def __init__(self, joints: np.ndarray, noise: float, rng: np.random.Generator) -> None:
        self.joints, self.noise, self.rng = joints, noise, rng
        self.speed = SPEED * rng.uniform(0.7, 1.4)
        self.velocity, self.tremor = np.zeros(2), np.zeros(2)
        self.phase, self.gripper, self.pause = "reach", OPEN, 0
        direction, is_near_miss = rng.uniform(0, 2 * np.pi), rng.random() < NEAR_MISSES
        self.error = is_near_miss * MISSED_BY * np.array([np.cos(direction), np.sin(direction)])

    def move(self, arm: TeleoperatedArm) -> np.ndarray:
        """Move the leader arm for one period; return joint angles, degrees, and the opening, percent."""
        target = arm.goal if self.phase in ("carry", "release") else arm.block + self.error
        arrived = bool(np.linalg.norm(find_points(arm.joints)[-1] - target) < REACH / 2)
        self._choose_phase(arm, arrived)
        opening = CLOSED if self.phase in ("grasp", "carry") else OPEN
        self.gripper += np.clip(opening - self.gripper, -SQUEEZE, SQUEEZE)
        self._move_hand(target - find_points(self.joints)[-1])
        return np.append(np.degrees(self.joints), self.gripper).astype(np.float32)

    def _choose_phase(self, arm: TeleoperatedArm, arrived: bool) -> None:
        """Go on to the next phase if this one is done; after a miss, reach again without an error."""
        if self.phase == "reach" and arrived and self.gripper == OPEN:
            self.phase = "grasp"
        elif self.phase == "grasp" and self.gripper == CLOSED and arm.holds:
            self.phase = "carry"
        elif self.phase == "grasp" and self.gripper == CLOSED:
            self.phase, self.error = "reach", np.zeros(2)
        elif self.phase == "carry" and arrived:
            self.phase = "release"

    def _move_hand(self, way: np.ndarray) -> None:
        """Move the hand a part of its way, unless it pauses or the fingers move; it trembles all the time."""
        if self.pause == 0 and self.rng.random() < PAUSES:
            self.pause = int(self.rng.integers(*PAUSE_PERIODS))
        self.pause = max(self.pause - 1, 0)
        speed = min(self.speed, SLOWDOWN * float(np.linalg.norm(way)))
        if self.pause or self.phase in ("grasp", "release"):
            speed = 0.0
        self.velocity += INERTIA * (speed * way / max(float(np.linalg.norm(way)), 1e-9) - self.velocity)
        fresh = self.rng.normal(0, self.noise * TREMOR, 2)
        self.tremor = CORRELATION * self.tremor + np.sqrt(1 - CORRELATION**2) * fresh
        self.joints = self.joints + find_turn(self.joints, self.velocity + self.tremor)


def main() -> None:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="NAME.zarr")
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes")
    parser.add_argument("--cameras", nargs="*", default=["top", "wrist"], help="top, wrist or none")
    args = parser.parse_args()
    try:
        print(f"wrote {record(args.out, *args.cameras, episodes=args.episodes, make_arm=TeleoperatedArm)}")
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
