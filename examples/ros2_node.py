"""ROS 2 node that runs a policy at a fixed rate.

    python examples/ros2_node.py --rate 10                       # the shipped policy
    python examples/ros2_node.py --rate 10 --url ws://host:8765  # a policy behind `nsde-policy serve`

It subscribes to `observation` and publishes `action`, both std_msgs/Float64MultiArray in the units and order
of the demonstrations. The robot should publish at least twice per control period, so that each period gets a
new observation. A session (docs/control_loop.md) keeps commands within the limits of the demonstrations and
plans ahead; after a fault it brakes and holds, and the node logs a warning with the reason.

`PolicyLoop` does not depend on ROS: it uses only the `data` of messages.
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
    """The part of a std_msgs/Float64MultiArray that the node uses."""

    data: Sequence[float]


class PolicyLoop:
    """Passes the newest observation to a session once per control period."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._observation: tuple[Any, float | None] = (None, None)
        self.problem = ""
        """Faults of the last control period; empty if there were none."""

    def receive(self, message: NumbersMessage, now_s: float) -> None:
        """Store an observation; the session checks it when it is used."""
        self._observation = message.data, now_s

    def step(self) -> np.ndarray | None:
        """Return the command for this control period, (act_dim,), or None if none is safe."""
        (obs, time_s), self._observation = self._observation, (None, None)
        try:
            action = self._session.step(obs, time_s)
        except (PolicyInputError, SessionStoppedError) as error:
            self.problem = str(error)
            return None
        last = self._session.last
        self.problem = "" if last is None else ", ".join(f"{f.kind}: {f.detail}" for f in last.faults)
        return action


def open_session(run: Path | None, url: str | None, config: SessionConfig) -> Session:
    """Open a session with a policy in this process, or with one behind a server."""
    if url is not None:
        from nsde_policy.deploy.client import RemotePolicy

        remote = RemotePolicy.connect(url, token=os.environ.get("NSDE_POLICY_TOKEN"))
        return Session(remote, config, calibration=remote.calibration)
    from nsde_policy.policy.policy import Policy

    policy = Policy.from_pretrained(run)
    return Session(policy, config, calibration=policy.calibration)


def import_ros() -> tuple[Any, Any]:
    """Import ROS 2's Python library and the class of the messages."""
    try:
        import rclpy
        from std_msgs.msg import Float64MultiArray
    except ImportError as error:
        raise MissingDependencyError(
            f"{error.name or error} cannot be imported; it is part of ROS 2 and not on PyPI: "
            "source /opt/ros/DISTRO/setup.bash, and use the Python that ROS 2 was built for"
        ) from None
    return rclpy, Float64MultiArray


def spin(loop: PolicyLoop, rate_hz: float, *, rclpy: Any, message_type: Any) -> None:
    """Run the loop as a ROS 2 node until it is interrupted."""
    rclpy.init()
    node = rclpy.create_node("nsde_policy")
    publisher = node.create_publisher(message_type, "action", 1)

    def tick() -> None:
        action = loop.step()
        if loop.problem:
            node.get_logger().warning(loop.problem)
        if action is not None:
            publisher.publish(message_type(data=[float(value) for value in action]))

    def listen(message: Any) -> None:
        loop.receive(message, time.monotonic())

    node.create_subscription(message_type, "observation", listen, 1)
    node.create_timer(1.0 / rate_hz, tick)
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the node; return 0 after an interrupt, 2 if it cannot start."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="run directory; by default the shipped policy")
    parser.add_argument("--url", help="policy server (nsde-policy serve); its token in NSDE_POLICY_TOKEN")
    parser.add_argument("--rate", type=float, default=10.0, help="control periods per second, Hz")
    parser.add_argument(
        "--policy-rate", type=float, help="rate of the demonstrations, Hz; by default from the run"
    )
    parser.add_argument("--max-age", type=float, help="oldest observation used, s; by default 1.5 periods")
    args, _ = parser.parse_known_args(argv)  # ROS adds its own arguments
    try:
        rclpy, message_type = import_ros()
        config = SessionConfig(
            rate_hz=args.rate, policy_hz=args.policy_rate, max_age_s=args.max_age, plan_ahead=True
        )
        with open_session(args.run, args.url, config) as session:
            spin(PolicyLoop(session), args.rate, rclpy=rclpy, message_type=message_type)
    except NsdePolicyError as error:
        print(f"ros2_node: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
