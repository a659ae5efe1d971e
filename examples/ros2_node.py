"""A ROS 2 node that runs a policy at a fixed rate.

    python examples/ros2_node.py --rate 10                       # the shipped policy
    python examples/ros2_node.py --rate 10 --url ws://host:8765  # behind `nsde-policy serve`

It listens to `observation` and speaks on `action`, both std_msgs/Float64MultiArray: the numbers of the
policy's observation and action, in their own units and order. Let the robot publish at least twice per
control period, so that each period finds a new observation. A session (docs/control_loop.md) keeps commands
inside the limits of the demonstrations and plans ahead of need; whatever is wrong, it brakes and holds, and
the node says why.

`PolicyLoop` is all of it but ROS: it knows messages by their `data` alone.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.errors import (
    MissingDependencyError,
    NsdePolicyError,
    PolicyInputError,
    SessionStoppedError,
)


class NumbersMessage(Protocol):
    """What is used of a std_msgs/Float64MultiArray."""

    data: Sequence[float]


class PolicyLoop:
    """The newest observation in, one command per control period out; a session keeps it safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen: tuple[Any, float | None] = (None, None)
        self.problem = ""
        """What was wrong in the last control period; empty where nothing was."""

    def observed(self, message: NumbersMessage, now_s: float) -> None:
        """Take in an observation; the session checks it when it is used."""
        self._seen = message.data, now_s

    def step(self) -> np.ndarray | None:
        """The command for this control period, (act_dim,); None where none is known to be safe."""
        (obs, then_s), self._seen = self._seen, (None, None)
        try:
            action = self._session.step(obs, then_s)
        except (PolicyInputError, SessionStoppedError) as error:
            self.problem = str(error)
            return None
        sent = self._session.last
        self.problem = "" if sent is None else ", ".join(f"{f.kind}: {f.detail}" for f in sent.faults)
        return action


def open_session(run: Path | None, url: str | None, config: SessionConfig) -> Session:
    """A session on the policy in this process, or on the one behind a server."""
    if url is not None:
        from nsde_policy.deploy.client import RemotePolicy

        remote = RemotePolicy.connect(url, token=os.environ.get("NSDE_POLICY_TOKEN"))
        return Session(remote, config, calibration=remote.calibration)
    import torch

    from nsde_policy.inference.policy import Policy

    torch.set_num_threads(1)
    policy = Policy.from_pretrained(run)
    return Session(policy, config, calibration=policy.calibration)


def ros() -> tuple[Any, Any]:
    """ROS 2's Python library, and the class of the messages."""
    try:
        import rclpy
        from std_msgs.msg import Float64MultiArray
    except ImportError as error:
        raise MissingDependencyError(
            f"{error.name or error} cannot be imported; it comes with ROS 2, not from PyPI: "
            "source /opt/ros/DISTRO/setup.bash, and run this with the Python that ROS 2 was built for"
        ) from None
    return rclpy, Float64MultiArray


def spin(loop: PolicyLoop, rate_hz: float, *, rclpy: Any, numbers: Any) -> None:
    """Wire the loop to ROS 2, until the node is told to stop; `numbers` is the class of the messages."""
    clock = time.monotonic
    rclpy.init()
    node = rclpy.create_node("nsde_policy")
    publisher = node.create_publisher(numbers, "action", 1)

    def tick() -> None:
        action = loop.step()
        if loop.problem:
            node.get_logger().warning(loop.problem)
        if action is not None:
            publisher.publish(numbers(data=[float(value) for value in action]))

    def listen(message: Any) -> None:
        loop.observed(message, clock())

    node.create_subscription(numbers, "observation", listen, 1)
    node.create_timer(1.0 / rate_hz, tick)
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """Load the policy, run the node; 0 when stopped, 2 when it cannot start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="run directory; the shipped policy by default")
    parser.add_argument("--url", help="a policy behind nsde-policy serve; NSDE_POLICY_TOKEN is its token")
    parser.add_argument("--rate", type=float, default=10.0, help="control periods per second, Hz")
    parser.add_argument(
        "--policy-rate", type=float, help="of the demonstrations, Hz; by default as the run says"
    )
    parser.add_argument("--max-age", type=float, help="oldest observation used, s; 1.5 periods by default")
    args, _ = parser.parse_known_args(argv)  # ROS adds arguments of its own
    try:
        rclpy, numbers = ros()
        config = SessionConfig(
            rate_hz=args.rate, policy_hz=args.policy_rate, max_age_s=args.max_age, plan_ahead=True
        )
        with open_session(args.run, args.url, config) as session:
            spin(PolicyLoop(session), args.rate, rclpy=rclpy, numbers=numbers)
    except NsdePolicyError as error:
        print(f"ros2_node: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
