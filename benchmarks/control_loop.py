"""Roll out the shipped policy in a session at 10 Hz in simulated time, with slow planning.

    python benchmarks/control_loop.py [--episodes 100] [--seed-start 100000]

Results do not depend on the machine. --json FILE adds the results to a file.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from nsde_policy.control import Session, SessionConfig
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.interface.planner import Planner
from nsde_policy.policy.policy import Policy

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "examples")]
from simulated_robot import SimulatedPushT  # noqa: E402

from tests.helpers.simulated_time import DelayedPlanner, InlineWorker, SimulatedWorker  # noqa: E402

PERIOD = 0.1
RATE_HZ = 10.0


class Setting(NamedTuple):
    """How a session is run."""

    delay_s: float = 0.0
    """Time that planning takes."""
    ahead: bool = False


def roll_out(policy: Policy, seed: int, how: Setting) -> dict[str, float]:
    """Roll out a seed and return its outcome."""
    robot = SimulatedPushT()
    robot.reset(seed=seed)

    def clock() -> float:
        return robot.time

    planner: Planner = policy if how.ahead else DelayedPlanner(policy, how.delay_s, sleep=robot.advance)
    worker = SimulatedWorker(clock, delay_s=how.delay_s) if how.ahead else InlineWorker()
    config = SessionConfig(rate_hz=RATE_HZ, plan_ahead=how.ahead, seed=seed)
    session = Session(planner, config, calibration=policy.calibration, clock=clock, worker=worker)
    tick = 0
    while not robot.ended:
        robot.send(session.step(robot.observe(), robot.time))
        tick = max(tick + 1, math.floor(robot.time * RATE_HZ + 1e-6))
        robot.advance(max(tick / RATE_HZ - robot.time, 0.0))
    session.close()
    return {"max_reward": round(robot.max_reward, 5), "won": robot.success}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="run directory; default: the shipped policy")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed-start", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = Policy.from_pretrained(args.run)
    first, rows = args.seed_start, list[dict[str, Any]]()
    slow = [Setting(n * PERIOD, ahead) for n in (1, 2, 3, 4) for ahead in (True, False)]
    for how in (Setting(), *slow):
        rolled = [roll_out(policy, seed, how) for seed in range(first, first + args.episodes)]
        reward = mean([each["max_reward"] for each in rolled])
        success = proportion(sum(bool(each["won"]) for each in rolled), len(rolled))
        print(
            f"planning takes {how.delay_s / PERIOD:g} periods, ahead {how.ahead}: "
            f"reward {reward}, success {success}",
            flush=True,
        )
        figures = {"reward": asdict(reward), "success": asdict(success)}
        columns = {key: [each[key] for each in rolled] for key in rolled[0]}
        rows.append({**how._asdict(), "seeds": [first, first + args.episodes - 1], **figures, **columns})
    if args.json is not None:
        known = json.loads(args.json.read_text()) if args.json.exists() else {}
        args.json.write_text(json.dumps({**known, "delays": rows}) + "\n")


if __name__ == "__main__":
    main()
