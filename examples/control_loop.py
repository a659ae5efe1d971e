"""A control loop in real time: the shipped policy pushes the T of a simulated robot.

    python examples/control_loop.py --seconds 30

Put your own robot in the place of `SimulatedPushT`: something to observe, something to send commands to.
The loop stays the same at any rate; above 10 Hz let the policy plan ahead, so that planning never stalls it.
"""

import argparse
import time

import torch

from nsde_policy.envs.pusht.robot import SimulatedPushT
from nsde_policy.errors import NsdePolicyError
from nsde_policy.inference.policy import Policy


def control(rate_hz: float, seconds: float, seed: int) -> None:
    """Run the loop until the goal is covered or the time is up, and say how it went."""
    policy = Policy.from_pretrained()
    robot = SimulatedPushT()
    robot.reset(seed=seed)
    started = time.monotonic()
    with policy.session(rate_hz, plan_ahead=rate_hz > 10, seed=seed) as session:
        for tick in session.ticks():
            robot.advance(tick - started - robot.time)
            if robot.success or tick - started >= seconds:
                break
            robot.send(session.step(robot.observe(), tick))
    print(session.report().as_text())
    print(f"covered {robot.max_reward:.2f} of what counts as success in {robot.time:.1f} s")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=10.0, help="commands per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="longest time to run")
    parser.add_argument("--seed", type=int, default=100_000, help="start of the episode, and noise")
    args = parser.parse_args()
    if not args.seconds > 0:
        parser.error(f"run for more than 0 seconds, got {args.seconds}")
    torch.set_num_threads(1)
    try:
        control(args.rate, args.seconds, args.seed)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
