"""Control loop: the shipped policy, a run or an exported policy drives a simulated robot.

    python examples/control_loop.py --seconds 30
    python examples/control_loop.py --policy policy.onnx --simulated-time     # needs no torch

Replace `SimulatedPushT` by your robot: something to observe and to send commands to. The loop is the same at
any rate; above 10 Hz it plans ahead, so that planning never blocks it.
"""

import argparse
import time
from pathlib import Path

from simulated_robot import SimulatedPushT

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import NsdePolicyError
from nsde_policy.policy.base_policy import BasePolicy


def load_policy(path: Path | None) -> BasePolicy:
    """Load a run directory or an ONNX file; None for the shipped policy."""
    if path is not None and path.suffix == ".onnx":
        from nsde_policy.deploy.runtime import RuntimePolicy

        return RuntimePolicy.load(path)
    from nsde_policy import Policy

    return Policy.from_pretrained(path)


def control(policy: BasePolicy, rate_hz: float, seconds: float, seed: int, simulated_time: bool) -> None:
    """Run the loop until success or timeout, and print the report of the session."""
    robot = SimulatedPushT()
    robot.reset(seed=seed)
    config = SessionConfig(rate_hz, plan_ahead=rate_hz > 10 and not simulated_time, seed=seed)
    clock, sleep = (lambda: robot.time, robot.advance) if simulated_time else (time.monotonic, time.sleep)
    with Session(policy, config, calibration=policy.calibration, clock=clock, sleep=sleep) as session:
        started = clock()
        for tick in session.ticks():
            robot.advance(tick - started - robot.time)  # nothing is left to do in simulated time
            if robot.success or robot.time >= seconds:
                break
            robot.send(session.step(robot.observe(), min(tick, clock())))
    print(session.report().to_text())
    print(f"best reward {robot.max_reward:.2f} in {robot.time:.1f} s")


def main() -> None:
    """Parse the command line and run the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policy", type=Path, help="run directory or ONNX file; default: the shipped policy")
    parser.add_argument("--rate", type=float, default=10.0, help="commands per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="timeout, seconds")
    parser.add_argument("--seed", type=int, default=100_000, help="seed of the episode and of the noise")
    parser.add_argument("--simulated-time", action="store_true", help="as fast as the machine computes")
    args = parser.parse_args()
    if not args.seconds > 0:
        parser.error(f"--seconds is {args.seconds}, expected more than 0")
    try:
        control(load_policy(args.policy), args.rate, args.seconds, args.seed, args.simulated_time)
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
