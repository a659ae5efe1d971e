"""Drive Push-T with an exported policy: a control loop without torch.

    nsde-policy export --out policy.onnx
    python examples/onnx_loop.py policy.onnx --episodes 3

It needs numpy and onnxruntime, and for the simulated robot gymnasium and pymunk. On your own robot, put its
observation and its command in the place of the environment's. With --real-time, periods take as long as they
would there.
"""

import argparse
import time

import gymnasium as gym
import numpy as np

from nsde_policy.envs import PUSHT_ID
from nsde_policy.errors import NsdePolicyError
from nsde_policy.runtime import RuntimePolicy

CONTROL_HZ = 10


def play(policy: RuntimePolicy, env: gym.Env, *, seed: int, real_time: bool) -> tuple[float, list[float]]:
    """One episode; its best reward, and the seconds each action took."""
    policy.reset(seed=seed)
    obs, _ = env.reset(seed=seed)
    best, taken, done = 0.0, [], False
    deadline = time.perf_counter()
    while not done:
        asked = time.perf_counter()
        action = policy.select_action(obs)
        taken.append(time.perf_counter() - asked)
        if real_time:
            deadline += 1 / CONTROL_HZ
            time.sleep(max(0.0, deadline - time.perf_counter()))
        obs, reward, terminated, truncated, _ = env.step(np.clip(action, 0, 512))
        best, done = max(best, float(reward)), terminated or truncated
    return best, taken


def main() -> None:
    """Play, and say how well and how fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policy", help="file that nsde-policy export wrote")
    parser.add_argument("--episodes", type=int, default=3, help="how many to play")
    parser.add_argument("--seed", type=int, default=100_000, help="first start")
    parser.add_argument("--steps", type=int, default=300, help="control periods of each at most")
    parser.add_argument("--real-time", action="store_true", help=f"{CONTROL_HZ} control periods per second")
    args = parser.parse_args()
    if args.episodes < 1 or args.steps < 1:
        parser.error(f"play at least 1 episode of 1 period, got {args.episodes} of {args.steps}")
    try:
        policy = RuntimePolicy.load(args.policy)
    except NsdePolicyError as error:
        parser.error(str(error))
    env = gym.make(PUSHT_ID, max_episode_steps=args.steps)
    for seed in range(args.seed, args.seed + args.episodes):
        best, taken = play(policy, env, seed=seed, real_time=args.real_time)
        milliseconds = 1e3 * np.array(taken)
        print(
            f"start {seed}: best reward {best:.3f} in {len(taken)} periods; an action took "
            f"{np.median(milliseconds):.3f} ms, at most {milliseconds.max():.3f} ms"
        )
    env.close()


if __name__ == "__main__":
    main()
