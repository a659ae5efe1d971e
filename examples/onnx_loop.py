"""Control loop without torch: an exported policy drives a simulated robot.

    nsde-policy export --out policy.onnx
    python examples/onnx_loop.py policy.onnx --episodes 3

It needs numpy, msgspec and onnxruntime, and gymnasium and pymunk for the simulated robot. Replace
`SimulatedPushT` by your robot: something to observe and to send commands to. The file contains the rate, the
limits and the out-of-distribution threshold. By default the clock is the simulation's, as fast as the machine
can compute; --real-time uses the real clock.
"""

import argparse
import time

from simulated_robot import SimulatedPushT

from nsde_policy.control import Session, SessionConfig, SessionReport
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.errors import NsdePolicyError


def play(
    policy: RuntimePolicy, *, seed: int, rate_hz: float, seconds: float, real_time: bool
) -> tuple[float, SessionReport]:
    """Play one episode and return its best reward and the report of the session."""
    robot = SimulatedPushT()
    robot.reset(seed=seed)
    clock, sleep = (time.monotonic, time.sleep) if real_time else (lambda: robot.time, robot.advance)
    config = SessionConfig(rate_hz=rate_hz, seed=seed, plan_ahead=real_time)
    with Session(policy, config, calibration=policy.calibration, clock=clock, sleep=sleep) as session:
        started = clock()
        for tick in session.ticks():
            # In simulated time `sleep` has already advanced the robot, and this adds nothing.
            robot.advance(tick - started - robot.time)
            if robot.success or robot.time >= seconds:
                break
            robot.send(session.step(robot.observe(), min(tick, clock())))
    return robot.max_reward, session.report()


def main() -> None:
    """Parse the command line, play the episodes and print rewards and reports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policy", help="file written by nsde-policy export")
    parser.add_argument("--episodes", type=int, default=3, help="number of episodes")
    parser.add_argument("--seed", type=int, default=100_000, help="seed of the first episode")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="timeout of an episode, simulated seconds"
    )
    parser.add_argument("--rate", type=float, default=10.0, help="commands per second")
    parser.add_argument("--real-time", action="store_true", help="use the real clock")
    args = parser.parse_args()
    if args.episodes < 1 or not args.seconds > 0:
        parser.error(
            f"--episodes is {args.episodes} and --seconds {args.seconds}, expected at least 1 and more than 0"
        )
    try:
        policy = RuntimePolicy.load(args.policy)
        for seed in range(args.seed, args.seed + args.episodes):
            best, report = play(
                policy, seed=seed, rate_hz=args.rate, seconds=args.seconds, real_time=args.real_time
            )
            print(f"seed {seed}: best reward {best:.3f}\n{report.to_text()}\n")
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
