"""A 6-DoF arm with a gripper: record, train, judge on held-out episodes, drive.

    python examples/arm_with_gripper.py out/gripper --steps 2000

The gripper is one more action with two values. Training finds that out, and commands are one of the two.
"""

from simulated_arm import SimulatedArm, drive, parse_arguments, record

import nsde_policy


def main() -> None:
    """Record, train and drive."""
    args = parse_arguments(__doc__)
    store = record(args.folder / "demos.zarr", episodes=args.episodes)
    policy = nsde_policy.train(store, out=args.folder / "run", validation=0.2, steps=args.steps)
    print(policy)
    print(nsde_policy.score(policy, store))
    for column, low, high in policy.spec.binary:
        print(f"action {column} is always {low:g} or {high:g}")
    delivered = [drive(policy, SimulatedArm(1000 + trial)) for trial in range(args.trials)]
    print(f"delivered the block in {sum(delivered)} of {args.trials} trials")


if __name__ == "__main__":
    main()
