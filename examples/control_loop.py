"""Control loop in real time: the shipped policy drives a simulated robot.

    python examples/control_loop.py --seconds 30

Replace `SimulatedPushT` by your robot: something to observe and to send commands to. The loop is the same at
any rate; above 10 Hz it plans ahead, so that planning never blocks it.
"""

import argparse
import time

from simulated_robot import SimulatedPushT

from nsde_policy import Policy
from nsde_policy.errors import NsdePolicyError


def control(rate_hz: float, seconds: float, seed: int) -> None:
    """Run the loop until success or timeout, and print the report of the session."""
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
    print(session.report().to_text())
    print(f"best reward {robot.max_reward:.2f} in {robot.time:.1f} s")


def main() -> None:
    """Parse the command line and run the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=10.0, help="commands per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="timeout, seconds")
    parser.add_argument("--seed", type=int, default=100_000, help="seed of the episode and of the noise")
    args = parser.parse_args()
    if not args.seconds > 0:
        parser.error(f"--seconds is {args.seconds}, expected more than 0")
    try:
        control(args.rate, args.seconds, args.seed)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
