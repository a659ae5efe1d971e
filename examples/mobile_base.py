"""A mobile base: pose and goal are observed, forward speed and turn rate are commanded.

    python examples/mobile_base.py out/base --steps 2000

The heading is an angle, which jumps from π to -π: name its column, and training continues it over the jump.
Commands are speeds, so a fault must end in zero, not in the last command: `on_fault` gets a callback.
"""

import math
from pathlib import Path

import numpy as np
from simulated_arm import parse_arguments

import nsde_policy
from nsde_policy import Session
from nsde_policy.control import SessionConfig
from nsde_policy.data import DemoWriter, Episode

RATE_HZ = 10.0
NAMES = {"state": ["x", "y", "heading", "goal_x", "goal_y"], "action": ["speed", "turn"]}


class Base:
    """Differential drive on a plane, metres and radians."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.pose = np.append(rng.uniform(-2, 2, 2), rng.uniform(-math.pi, math.pi))
        self.goal = rng.uniform(-2, 2, 2)

    def observe(self) -> np.ndarray:
        """Return x, y, heading in [-π, π) and the goal."""
        return np.concatenate([self.pose, self.goal]).astype(np.float32)

    def send(self, command: np.ndarray) -> None:
        """Drive for one period, metres and radians per second."""
        x, y, heading = self.pose
        way = command[0] / RATE_HZ
        turned = heading + command[1] / RATE_HZ
        wrapped = (turned + math.pi) % (2 * math.pi) - math.pi
        self.pose = np.array([x + way * math.cos(heading), y + way * math.sin(heading), wrapped])

    @property
    def distance(self) -> float:
        """Distance to the goal, metres."""
        return float(np.linalg.norm(self.pose[:2] - self.goal))


def find_command(base: Base) -> np.ndarray:
    """Turn to the goal, and drive the faster the better the direction is."""
    way = base.goal - base.pose[:2]
    error = (math.atan2(way[1], way[0]) - base.pose[2] + math.pi) % (2 * math.pi) - math.pi
    speed = min(0.8, base.distance) * max(math.cos(error), 0.0)
    return np.array([speed, np.clip(2 * error, -1.5, 1.5)], np.float32)


def record_base(path: Path, episodes: int) -> Path:
    """Write episodes in which a script drives to the goal."""
    with DemoWriter(path, rate_hz=RATE_HZ, angles=(2,), attributes={"columns": NAMES}) as writer:
        for k in range(episodes):
            base, obs, act = Base(k), [], []
            while base.distance > 0.1 and len(obs) < 150:
                obs.append(base.observe())
                act.append(find_command(base))
                base.send(act[-1])
            writer.append(Episode(np.stack(obs), np.stack(act)))
    return path


def drive_base(policy: nsde_policy.Policy, base: Base, seconds: float = 15.0) -> float:
    """Let a policy drive in simulated time; return the distance that is left."""
    now = 0.0
    config = SessionConfig(rate_hz=RATE_HZ, on_fault=lambda fault: np.zeros(2))
    with Session(policy, config, calibration=policy.calibration, clock=lambda: now) as session:
        while now < seconds and base.distance > 0.1:
            base.send(session.step(base.observe(), now))
            now += 1 / RATE_HZ
    return base.distance


def main() -> None:
    """Record, train and drive."""
    args = parse_arguments(__doc__)
    store = record_base(args.folder / "demos.zarr", args.episodes)
    policy = nsde_policy.train(store, out=args.folder / "run", steps=args.steps)
    left = [drive_base(policy, Base(1000 + trial)) for trial in range(args.trials)]
    print(f"distance to the goal, metres: {', '.join(f'{each:.2f}' for each in left)}")


if __name__ == "__main__":
    main()
