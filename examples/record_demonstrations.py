"""Record demonstrations: a loop to copy for your robot or teleoperation.

    python examples/record_demonstrations.py --out my_demos.zarr --episodes 12

The demonstrator is a simple script that goes behind the block and pushes it towards the goal; it moves the
block but rarely solves the task. Replace it by yours. The program can be stopped at any time, even with
kill -9: at most the current episode is lost, and the next start records those that are missing.
"""

import argparse
import math
from pathlib import Path

import gymnasium as gym
import numpy as np

from nsde_policy.data import DemoWriter, Episode
from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht import geometry


def pusher(obs: np.ndarray) -> np.ndarray:
    """Move around the block to the side opposite the goal, then push through its centre."""
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
    """Parse the command line and record the episodes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="zarr store to create or to continue")
    parser.add_argument("--episodes", type=int, default=12, help="episodes that the store should hold")
    parser.add_argument("--steps", type=int, default=100, help="control periods per episode")
    args = parser.parse_args()
    if args.episodes < 1 or args.steps < 2:
        parser.error(
            f"--episodes is {args.episodes} and --steps {args.steps}, expected at least 1 and at least 2"
        )

    env = gym.make(PUSHT_ID)
    provenance = {"demonstrator": "examples/record_demonstrations.py", "env": PUSHT_ID}
    with DemoWriter(args.out, resume=True, rate_hz=10, angles=(4,), provenance=provenance) as writer:
        for seed in range(len(writer), args.episodes):
            observations, actions = [], []
            obs, _ = env.reset(seed=seed)
            for _ in range(args.steps):
                action = pusher(obs)
                observations.append(obs)
                actions.append(action)
                obs, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    break
            writer.append(Episode(np.array(observations, np.float32), np.array(actions, np.float32)))
        print(f"{args.out} holds {len(writer)} episodes")


if __name__ == "__main__":
    main()
