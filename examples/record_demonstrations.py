"""Record demonstrations: the loop to copy for your own robot or teleoperation.

    python examples/record_demonstrations.py --out my_demos.zarr --episodes 12

The demonstrator here is a simple script that walks behind the block and pushes it towards the goal;
it makes contact and moves the block, but it is no expert. Put yours in its place. Stop the program
whenever you like, even with kill -9: at most the episode being recorded is lost, and starting it
again goes on behind the last one.
"""

import argparse
import math
from pathlib import Path

import gymnasium as gym
import numpy as np

from nsde_policy.data import PUSHT_ANGLES, DemoWriter, Episode
from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht import geometry


def pusher(obs: np.ndarray) -> np.ndarray:
    """Go round the block to the side away from the goal, then push through its centre."""
    agent, block = obs[:2], obs[2:]
    (centre,) = np.array(geometry.to_world([geometry.CENTRE_OF_GRAVITY], block))
    (goal,) = np.array(geometry.to_world([geometry.CENTRE_OF_GRAVITY], geometry.GOAL_POSE))
    away = (centre - goal) / max(float(np.linalg.norm(centre - goal)), 1e-6)
    side = agent - centre
    angle = math.atan2(side[1], side[0])
    turn = (math.atan2(away[1], away[0]) - angle + math.pi) % (2 * math.pi) - math.pi
    if abs(turn) > 0.25:
        angle += math.copysign(min(abs(turn), 0.35), turn)
        return centre + 120 * np.array([math.cos(angle), math.sin(angle)])
    return agent + 25 * (goal - agent) / max(float(np.linalg.norm(goal - agent)), 25.0)


def main() -> None:
    """Record, and say how many."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="zarr store to begin or continue")
    parser.add_argument("--episodes", type=int, default=12, help="how many to record")
    parser.add_argument("--steps", type=int, default=100, help="control periods of each")
    args = parser.parse_args()
    if args.episodes < 1 or args.steps < 2:
        parser.error("record at least 1 episode of at least 2 steps")

    env = gym.make(PUSHT_ID)
    provenance = {"demonstrator": "examples/record_demonstrations.py", "env": PUSHT_ID}
    with DemoWriter(args.out, rate_hz=10, angles=PUSHT_ANGLES, provenance=provenance) as writer:
        for seed in range(args.episodes):
            seen, commanded = [], []
            obs, _ = env.reset(seed=seed)
            for _ in range(args.steps):
                action = pusher(obs)
                seen.append(obs)
                commanded.append(action)
                obs, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    break
            writer.append(Episode(np.array(seen, np.float32), np.array(commanded, np.float32)))
    print(f"recorded {args.episodes} episodes in {args.out}")


if __name__ == "__main__":
    main()
