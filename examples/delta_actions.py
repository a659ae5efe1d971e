"""Actions that are changes of the joints per period, instead of positions.

    python examples/delta_actions.py out/deltas --steps 2000

Training recognises changes. A session sends each of them once, runs at the recorded rate, and commands zero
when it has to stop.
"""

from pathlib import Path

import numpy as np
from simulated_arm import (
    JOINTS,
    LAG,
    RATE_HZ,
    SimulatedArm,
    drive,
    parse_arguments,
    play_expert,
)

import nsde_policy
from nsde_policy.data import DemoWriter, Episode


class DeltaArm(SimulatedArm):
    """The same arm, whose controller adds changes to the joints."""

    def send(self, command: np.ndarray) -> None:
        """Move the joints by a change; the last number closes the gripper or opens it."""
        super().send(np.append(self.joints + command[:JOINTS] / LAG, command[JOINTS]))


def record_changes(path: Path, episodes: int) -> Path:
    """Write episodes of the expert with changes as actions."""
    with DemoWriter(path, rate_hz=RATE_HZ) as writer:
        for k in range(episodes):
            episode, extras = play_expert(SimulatedArm(k))
            act = episode.act.copy()
            act[:, :JOINTS] = LAG * (act[:, :JOINTS] - episode.obs[:, :JOINTS])
            writer.append(Episode(np.concatenate([episode.obs, extras["block"]], axis=1), act))
    return path


def main() -> None:
    """Record, train and drive."""
    args = parse_arguments(__doc__)
    store = record_changes(args.folder / "demos.zarr", args.episodes)
    policy = nsde_policy.train(store, out=args.folder / "run", steps=args.steps)
    print(f"changes per period: actions {list(policy.calibration.delta_columns)}")
    delivered = [drive(policy, DeltaArm(1000 + trial)) for trial in range(args.trials)]
    print(f"delivered the block in {sum(delivered)} of {args.trials} trials")


if __name__ == "__main__":
    main()
