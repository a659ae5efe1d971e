"""Drive Push-T with an exported policy: a control loop without torch.

    nsde-policy export --out policy.onnx
    python examples/onnx_loop.py policy.onnx --episodes 3

It needs numpy and onnxruntime, and for the simulated robot gymnasium and pymunk. Put your own robot in the
place of `SimulatedPushT`: something to observe, something to send commands to. Rate, limits and what a
familiar state is come with the file. Time is the robot's own, as fast as the machine can; with --real-time
it is yours.
"""

import argparse
import time

from nsde_policy.control import Report, Session, SessionConfig
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.envs.pusht.robot import SimulatedPushT
from nsde_policy.errors import NsdePolicyError


def play(
    policy: RuntimePolicy, *, seed: int, rate_hz: float, seconds: float, real_time: bool
) -> tuple[float, Report]:
    """One episode; its best reward, and how the loop went."""
    robot = SimulatedPushT()
    robot.reset(seed=seed)
    clock, sleep = (time.monotonic, time.sleep) if real_time else (lambda: robot.time, robot.advance)
    config = SessionConfig(rate_hz=rate_hz, seed=seed, plan_ahead=real_time)
    with Session(policy, config, calibration=policy.calibration, clock=clock, sleep=sleep) as session:
        started = clock()
        for tick in session.ticks():
            robot.advance(tick - started - robot.time)  # by nothing, where time is the robot's own
            if robot.success or robot.time >= seconds:
                break
            robot.send(session.step(robot.observe(), min(tick, clock())))
    return robot.max_reward, session.report()


def main() -> None:
    """Play, and say how well and how fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policy", help="file that nsde-policy export wrote")
    parser.add_argument("--episodes", type=int, default=3, help="how many to play")
    parser.add_argument("--seed", type=int, default=100_000, help="first start")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each at most, on the robot's clock")
    parser.add_argument("--rate", type=float, default=10.0, help="commands per second")
    parser.add_argument("--real-time", action="store_true", help="let a second take a second")
    args = parser.parse_args()
    if args.episodes < 1 or not args.seconds > 0:
        parser.error(f"play at least 1 episode of more than 0 s, got {args.episodes} of {args.seconds}")
    try:
        policy = RuntimePolicy.load(args.policy)
        for seed in range(args.seed, args.seed + args.episodes):
            best, report = play(
                policy, seed=seed, rate_hz=args.rate, seconds=args.seconds, real_time=args.real_time
            )
            print(f"start {seed}: best reward {best:.3f}\n{report.as_text()}\n")
    except NsdePolicyError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
