"""A ROS 2 node that runs a policy at a fixed rate.

    python examples/ros2_node.py --rate 10                                  # the shipped policy, in the node
    python examples/ros2_node.py --rate 10 --url ws://gpu-box:8765          # behind `nsde-policy serve`

It listens to `observation` and speaks on `action`, both std_msgs/Float64MultiArray: the numbers of the
policy's observation and action, in their own units and order. Whatever is wrong (no observation for too long,
one of another size or not finite, a policy that fails or is late), it holds the last command and says why;
when things are right again it plans afresh from what it then sees.

`PolicyLoop` is all of it but ROS: it knows messages by their `data` alone, and is told the time.
"""

import argparse
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nsde_policy.errors import NsdePolicyError
from nsde_policy.planner import Planner


class NumbersMessage(Protocol):
    """What is used of a std_msgs/Float64MultiArray."""

    data: Sequence[float]


class PolicyLoop:
    """The last observation in, one command per control period out."""

    def __init__(self, planner: Planner, *, max_age_s: float, seed: int = 0) -> None:
        self._planner, self._max_age_s = planner, max_age_s
        self._rng = np.random.default_rng(seed)
        self._memory = planner.spec.memory()
        self._queue: deque[np.ndarray] = deque()
        self._seen: tuple[np.ndarray, float] | None = None
        self._problem = "no observation yet"
        self._last: np.ndarray | None = None
        self.holds: Counter[str] = Counter()
        """How many periods were held, by reason."""

    def observed(self, message: NumbersMessage, now_s: float) -> None:
        """Take in an observation; one that cannot be right is not used, and neither is the one before it."""
        self._seen, size = None, self._planner.spec.obs_dim
        try:
            values = np.asarray(message.data, dtype=np.float64)
        except (TypeError, ValueError):
            self._problem = "observation is no list of numbers"
            return
        if values.shape != (size,):
            self._problem = f"observation has shape {values.shape}, expected ({size},)"
        elif not (np.abs(values) <= np.finfo(np.float32).max).all():
            self._problem = "observation is not finite"
        else:
            self._seen = values, now_s

    def step(self, now_s: float) -> np.ndarray | None:
        """The command for this control period, (act_dim,); None where there has been none to hold."""
        if self._seen is None:
            return self._hold(self._problem)
        obs, then_s = self._seen
        if now_s < then_s:
            return self._hold("the clock went backwards")
        if now_s - then_s > self._max_age_s:
            return self._hold("observation is too old")
        try:
            return self._next(obs)
        except NsdePolicyError as error:
            return self._hold(f"policy: {error}")
        except Exception as error:  # an arm in motion is no place for a crash
            return self._hold(f"policy: unexpected {type(error).__name__}: {error}")

    def _next(self, obs: np.ndarray) -> np.ndarray:
        spec = self._planner.spec
        self._memory.see(obs)
        if not self._queue:
            seed = int(self._rng.integers(2**63))
            plan = self._planner.plan_from(self._memory.states(), steps=spec.chunk, seed=seed)
            low, high = np.array(spec.low)[spec.obs_dim :], np.array(spec.high)[spec.obs_dim :]
            if plan.actions.shape != (spec.chunk, spec.act_dim) or not np.isfinite(plan.actions).all():
                raise NsdePolicyError("the plan is no plan: wrong shape, or not finite")
            self._queue.extend(np.clip(plan.actions, low, high))
        action = self._queue.popleft()
        self._memory.did(action)
        self._last = action
        return action

    def _hold(self, problem: str) -> np.ndarray | None:
        """Send the last command again; what was planned and seen before is of no use afterwards."""
        self.holds[problem] += 1
        self._queue.clear()
        self._memory = self._planner.spec.memory()
        if self._last is not None:
            self._memory.did(self._last)
        return self._last


def load_planner(run: Path | None, url: str | None) -> Planner:
    """The policy in this process, or the one behind a server."""
    if url is not None:
        from nsde_policy.remote.client import RemotePolicy

        return RemotePolicy.connect(url, token=os.environ.get("NSDE_POLICY_TOKEN"))
    import torch

    from nsde_policy.policy import NSDEPolicy

    torch.set_num_threads(1)
    return NSDEPolicy.from_pretrained(run)


def spin(loop: PolicyLoop, rate_hz: float, *, rclpy: Any, numbers: Any) -> None:
    """Wire the loop to ROS 2, until the node is told to stop; `numbers` is the class of the messages."""
    clock = time.monotonic
    rclpy.init()
    node = rclpy.create_node("nsde_policy")
    publisher = node.create_publisher(numbers, "action", 1)

    def tick() -> None:
        before = loop.holds.total()
        action = loop.step(clock())
        if loop.holds.total() > before:
            node.get_logger().warning(f"holding: {dict(loop.holds)}")
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
        "--max-age", type=float, help="oldest observation acted upon, s; 2 periods by default"
    )
    args, _ = parser.parse_known_args(argv)  # ROS adds arguments of its own
    if args.rate <= 0:
        parser.error(f"need a rate above 0 Hz, got {args.rate}")
    try:
        import rclpy
        from std_msgs.msg import Float64MultiArray

        loop = PolicyLoop(load_planner(args.run, args.url), max_age_s=args.max_age or 2.0 / args.rate)
        spin(loop, args.rate, rclpy=rclpy, numbers=Float64MultiArray)
    except (NsdePolicyError, ModuleNotFoundError) as error:
        print(f"ros2_node: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
